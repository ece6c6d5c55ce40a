package windows_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/internal/windows"
)

func parseWindows(t *testing.T, list ...windows.Window) windows.Set {
	t.Helper()
	s, err := windows.Parse(list)
	must.Succeed(t, err)
	return s
}

func parseTime(t *testing.T, text string) time.Time {
	t.Helper()
	parsed, err := time.Parse(time.RFC3339, text)
	must.Succeed(t, err)
	return parsed
}

func TestOpening(t *testing.T) {
	t.Parallel()
	night := windows.Window{Cron: "0 1 * * *", Duration: "4h", Timezone: "Asia/Shanghai"} // 17:00 to 21:00 UTC
	berlin := func(cron, duration string) windows.Window {
		return windows.Window{Cron: cron, Duration: duration, Timezone: "Europe/Berlin"}
	}
	for name, test := range map[string]struct {
		list             []windows.Window
		now, from, until string
	}{
		"before it":             {[]windows.Window{night}, "2026-03-01T16:59:59Z", "2026-03-01T17:00:00Z", "2026-03-01T21:00:00Z"},
		"at its start":          {[]windows.Window{night}, "2026-03-01T17:00:00Z", "2026-03-01T17:00:00Z", "2026-03-01T21:00:00Z"},
		"inside":                {[]windows.Window{night}, "2026-03-01T20:59:59Z", "2026-03-01T17:00:00Z", "2026-03-01T21:00:00Z"},
		"at its end":            {[]windows.Window{night}, "2026-03-01T21:00:00Z", "2026-03-02T17:00:00Z", "2026-03-02T21:00:00Z"},
		"no zone is UTC":        {[]windows.Window{{Cron: "30 2 * * *", Duration: "90m"}}, "2026-03-01T00:00:00Z", "2026-03-01T02:30:00Z", "2026-03-01T04:00:00Z"},
		"on Mondays":            {[]windows.Window{{Cron: "0 0 * * 1", Duration: "24h"}}, "2026-03-03T00:00:00Z", "2026-03-09T00:00:00Z", "2026-03-10T00:00:00Z"},
		"the earlier one":       {[]windows.Window{{Cron: "0 8 * * *", Duration: "1h"}, {Cron: "0 6 * * *", Duration: "1h"}}, "2026-03-01T00:00:00Z", "2026-03-01T06:00:00Z", "2026-03-01T07:00:00Z"},
		"two that touch":        {[]windows.Window{{Cron: "0 8 * * *", Duration: "1h"}, {Cron: "0 9 * * *", Duration: "2h"}}, "2026-03-01T00:00:00Z", "2026-03-01T08:00:00Z", "2026-03-01T11:00:00Z"},
		"within two that touch": {[]windows.Window{{Cron: "0 1 * * *", Duration: "1h"}, {Cron: "0 2 * * *", Duration: "90m"}}, "2026-03-01T02:30:00Z", "2026-03-01T01:00:00Z", "2026-03-01T03:30:00Z"},
		"where two touch":       {[]windows.Window{{Cron: "0 1 * * *", Duration: "1h"}, {Cron: "0 2 * * *", Duration: "90m"}}, "2026-03-01T02:00:00Z", "2026-03-01T01:00:00Z", "2026-03-01T03:30:00Z"},
		"two that overlap": {
			[]windows.Window{{Cron: "0 8 * * *", Duration: "3h"}, {Cron: "0 9 * * *", Duration: "1h"}, {Cron: "30 10 * * *", Duration: "1h"}},
			"2026-03-01T09:30:00Z", "2026-03-01T08:00:00Z", "2026-03-01T11:30:00Z",
		},
		"always":       {[]windows.Window{{Cron: "* * * * *", Duration: "1m"}}, "2026-03-01T00:00:30Z", "2026-02-27T00:00:00Z", "2026-03-03T00:01:00Z"},
		"over a month": {[]windows.Window{{Cron: "0 22 28 2 *", Duration: "48h"}}, "2026-03-01T10:00:00Z", "2026-02-28T22:00:00Z", "2026-03-02T22:00:00Z"},

		// In Berlin, the clocks jump from 02:00 to 03:00 (01:00 UTC) on 2026-03-29, and go back from 03:00 to 02:00
		// (01:00 UTC) on 2026-10-25.
		"skipped hour":                {[]windows.Window{berlin("30 2 * * *", "1h")}, "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"},
		"the day after":               {[]windows.Window{berlin("30 2 * * *", "1h")}, "2026-03-29T12:00:00Z", "2026-03-30T00:30:00Z", "2026-03-30T01:30:00Z"},
		"begins before the jump":      {[]windows.Window{berlin("30 1 * * *", "2h")}, "2026-03-29T00:45:00Z", "2026-03-29T00:30:00Z", "2026-03-29T02:30:00Z"},
		"hour that comes twice":       {[]windows.Window{berlin("30 2 * * *", "1h")}, "2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"},
		"not a second time":           {[]windows.Window{berlin("30 2 * * *", "10m")}, "2026-10-25T00:45:00Z", "2026-10-26T01:30:00Z", "2026-10-26T01:40:00Z"},
		"just before it would":        {[]windows.Window{berlin("30 2 * * *", "10m")}, "2026-10-25T01:10:00Z", "2026-10-26T01:30:00Z", "2026-10-26T01:40:00Z"},
		"every hour, in both":         {[]windows.Window{berlin("30 * * * *", "10m")}, "2026-10-25T00:45:00Z", "2026-10-25T01:30:00Z", "2026-10-25T01:40:00Z"},
		"every hour, none skipped":    {[]windows.Window{berlin("30 * * * *", "10m")}, "2026-03-29T00:45:00Z", "2026-03-29T01:30:00Z", "2026-03-29T01:40:00Z"},
		"midnight that is not there":  {[]windows.Window{{Cron: "0 0 * * *", Duration: "1h", Timezone: "America/Asuncion"}}, "2023-09-30T12:00:00Z", "2023-10-01T04:00:00Z", "2023-10-01T05:00:00Z"},
		"elapsed, half an hour":       {[]windows.Window{{Cron: "0 */2 * * *", Duration: "5m", Timezone: "Australia/Lord_Howe"}}, "2026-04-04T13:30:00Z", "2026-04-04T15:30:00Z", "2026-04-04T15:35:00Z"},
		"elapsed, the last of a year": {[]windows.Window{{Cron: "0 */2 * * *", Duration: "5m", Timezone: "Europe/Berlin"}}, "2040-12-31T13:30:00Z", "2040-12-31T15:00:00Z", "2040-12-31T15:05:00Z"},
		"half an hour of change":      {[]windows.Window{{Cron: "45 1 * * *", Duration: "5m", Timezone: "Australia/Lord_Howe"}}, "2026-04-04T12:00:00Z", "2026-04-04T14:45:00Z", "2026-04-04T14:50:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := parseWindows(t, test.list...).Opening(parseTime(t, test.now))
			if got.From.Format(time.RFC3339) != test.from || got.Until.Format(time.RFC3339) != test.until {
				t.Errorf("from %s until %s, want %s until %s", got.From, got.Until, test.from, test.until)
			}
			if !got.RecomputeAt.After(parseTime(t, test.now)) || got.RecomputeAt.After(got.Until) || got.RecomputeAt.After(parseTime(t, test.now).Add(24*time.Hour)) {
				t.Errorf("due %s", got.RecomputeAt)
			}
		})
	}
}

// TestOpeningsFollowOneAnother steps through a year, opening by opening. The clocks change twice in it. An opening
// must be the same whether it is computed before it begins or during it, and each day must have one opening.
func TestOpeningsFollowOneAnother(t *testing.T) {
	t.Parallel()
	set := parseWindows(t, windows.Window{Cron: "30 2 * * *", Duration: "2h", Timezone: "Europe/Berlin"})
	zone, err := time.LoadLocation("Europe/Berlin")
	must.Succeed(t, err)
	now, days := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), map[string]bool{}
	for now.Year() == 2026 {
		next := set.Opening(now)
		if next.From.Before(now) || next.Until.Sub(next.From) != 2*time.Hour {
			t.Fatalf("at %s the opening is %+v", now, next)
		}
		if within := set.Opening(next.From.Add(time.Hour)); within.From != next.From || within.Until != next.Until {
			t.Fatalf("within %+v it is %+v", next, within)
		}
		days[next.From.In(zone).Format(time.DateOnly)] = true
		now = next.Until
	}
	if len(days) != 366 { // the last one begins on New Year's Day
		t.Fatalf("open on %d days of 2026", len(days))
	}
}

func TestParseNamesWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ cron, duration, timezone, want string }{
		{"", "1h", "", "cron"},
		{"TZ=UTC", "1h", "", "cron"},
		{"TZ=", "1h", "", "cron"},
		{"CRON_TZ=Asia/Tokyo 0 1 * * *", "1h", "", "cron"},
		{"TZ=UTC * * * *", "1h", "", "cron"},
		{"@daily", "1h", "", "cron"},
		{"@every 1h", "1h", "", "cron"},
		{"0 1 * *", "1h", "", "cron"},
		{"0 0 1 * * *", "1h", "", "cron"},
		{"60 1 * * *", "1h", "", "cron"},
		{"0-59/0 1 * * *", "1h", "", "cron"},
		{"*/-1 1 * * *", "1h", "", "cron"},
		{"x 1 * * *", "1h", "", "cron"},
		{"0 0 31 2 *", "1h", "", "never fires"},
		{strings.Repeat("0,", 60) + "0 1 * * *", "1h", "", "cron"},
		{"0 1 * * *", "", "", "duration"},
		{"0 1 * * *", "59s", "", "duration"},
		{"0 1 * * *", "169h", "", "duration"},
		{"0 1 * * *", "-1h", "", "duration"},
		{"0 1 * * *", "4", "", "duration"},
		{"0 1 * * *", "1h", "Local", "timezone"},
		{"0 1 * * *", "1h", "Mars/Olympus", "timezone"},
		{"0 1 * * *", "1h", "../etc/passwd", "timezone"},
	} {
		_, err := windows.Parse([]windows.Window{{Cron: "0 1 * * *", Duration: "1h"}, {Cron: test.cron, Duration: test.duration, Timezone: test.timezone}})
		if err == nil || !strings.HasPrefix(err.Error(), "windows[1].") || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q for %q in %q: %v, want %s named", test.cron, test.duration, test.timezone, err, test.want)
		}
	}
	if _, err := windows.Parse(make([]windows.Window, windows.MaxWindows+1)); err == nil {
		t.Error("too many are taken")
	}
}

// FuzzParse parses any text as windows. The text is either refused, or gives valid openings.
func FuzzParse(f *testing.F) {
	for _, spec := range []string{"0 1 * * *", "*/10 */2 1-7 jan-mar mon", "TZ=UTC", "TZ= 0 1 * *", "59 23 31 12 7", "0 2 29 2 *"} {
		f.Add(spec, "4h", "America/Sao_Paulo", int64(1_790_000_000))
	}
	f.Fuzz(func(t *testing.T, spec, duration, zone string, unix int64) {
		set, err := windows.Parse([]windows.Window{{Cron: spec, Duration: duration, Timezone: zone}})
		if err != nil {
			return
		}
		now := time.Unix(min(max(unix, 0), 4_000_000_000), 0)
		if o := set.Opening(now); !o.RecomputeAt.After(now) || o.Until.Before(o.From) || o.RecomputeAt.After(o.Until) {
			t.Fatalf("%q for %s in %s at %s: %+v", spec, duration, zone, now, o)
		}
	})
}
