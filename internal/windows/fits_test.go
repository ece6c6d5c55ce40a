package windows_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/internal/windows"
)

// windowsIn returns windows of one time zone. In list, cron expressions and durations alternate.
func windowsIn(zone string, list ...string) []windows.Window {
	var read []windows.Window
	for i := 0; i < len(list); i += 2 {
		read = append(read, windows.Window{Cron: list[i], Duration: list[i+1], Timezone: zone})
	}
	return read
}

func TestWhatNeverFits(t *testing.T) {
	t.Parallel()
	touching := windowsIn("UTC", "0 1 * * *", "1h", "0 2 * * *", "90m")
	for name, test := range map[string]struct {
		batch, pool []windows.Window
		longest     time.Duration // the longest time that all sets are open
	}{
		"one window":                      {windowsIn("Asia/Shanghai", "0 1 * * *", "4h"), nil, 4 * time.Hour},
		"windows that touch":              {touching, nil, 150 * time.Minute},
		"windows that touch, of a pool":   {nil, touching, 150 * time.Minute},
		"windows that overlap":            {windowsIn("Europe/Berlin", "0 1 * * *", "2h", "30 2 * * *", "1h"), nil, 150 * time.Minute},
		"windows a minute apart":          {windowsIn("UTC", "0 1 * * *", "59m", "0 2 * * *", "90m"), nil, 90 * time.Minute},
		"over midnight":                   {windowsIn("America/St_Johns", "0 22 * * *", "2h", "0 0 * * *", "1h"), nil, 3 * time.Hour},
		"over a weekend":                  {windowsIn("UTC", "0 0 * * 6", "24h", "0 0 * * 0", "24h"), nil, 48 * time.Hour},
		"over New Year":                   {windowsIn("UTC", "0 0 31 12 *", "24h", "0 0 1 1 *", "24h"), nil, 48 * time.Hour},
		"over the end of months":          {windowsIn("UTC", "0 0 31 * *", "24h", "0 0 1 * *", "24h"), nil, 48 * time.Hour},
		"only in leap years":              {windowsIn("UTC", "0 0 28 2 *", "24h", "0 0 29 2 *", "24h"), nil, 48 * time.Hour},
		"not in leap years":               {windowsIn("UTC", "0 0 28 2 *", "24h", "0 0 1 3 *", "24h"), nil, 48 * time.Hour},
		"never next to one another":       {windowsIn("UTC", "0 0 28 2 *", "24h", "0 0 2 3 *", "24h"), nil, 24 * time.Hour},
		"when an hour is skipped":         {windowsIn("Europe/Berlin", "0 1 * * *", "1h", "0 3 * * *", "1h"), nil, 2 * time.Hour},
		"no hour is skipped in UTC":       {windowsIn("UTC", "0 1 * * *", "1h", "0 3 * * *", "1h"), nil, time.Hour},
		"once in 28 years":                {windowsIn("UTC", "0 0 29 2 *", "24h"), windowsIn("UTC", "0 0 * * 6", "24h"), 24 * time.Hour},
		"if that day is a Sunday":         {windowsIn("Europe/Berlin", "0 1 29 3 *", "1h", "0 3 29 3 *", "1h"), nil, 2 * time.Hour},
		"never on that day":               {windowsIn("Europe/Berlin", "0 1 15 3 *", "1h", "0 3 15 3 *", "1h"), nil, time.Hour},
		"elapsed hours":                   {windowsIn("Australia/Lord_Howe", "30 */2 * * *", "1h"), nil, time.Hour},
		"seconds":                         {windowsIn("UTC", "0 1 * * *", "90s"), nil, 90 * time.Second},
		"both":                            {windowsIn("UTC", "0 1 * * *", "3h"), windowsIn("UTC", "0 2 * * *", "5h"), 2 * time.Hour},
		"both, in winter":                 {windowsIn("Europe/Berlin", "0 1 * * *", "2h"), windowsIn("UTC", "0 0 * * *", "3h"), 2 * time.Hour},
		"the windows of one touch":        {windowsIn("UTC", "30 1 * * *", "2h"), touching, 2 * time.Hour},
		"one after the other":             {windowsIn("UTC", "0 1 * * *", "1h"), windowsIn("UTC", "0 2 * * *", "5h"), 0},
		"on days that are never the same": {windowsIn("UTC", "0 0 * 2 *", "24h"), windowsIn("UTC", "0 0 30 * *", "24h"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			batch, pool := parseWindows(t, test.batch...), parseWindows(t, test.pool...)
			if windows.HaveCommonOpening(test.longest, batch, pool) {
				t.Errorf("more than %s fits", test.longest)
			}
			if test.longest > 0 && !windows.HaveCommonOpening(test.longest-1, batch, pool) {
				t.Errorf("less than %s does not fit", test.longest)
			}
		})
	}
}

func TestEverythingFitsIntoWhatIsNeverClosed(t *testing.T) {
	t.Parallel()
	for name, always := range map[string][]windows.Window{
		"no windows":   nil,
		"each hour":    windowsIn("Europe/Berlin", "0 * * * *", "1h"),
		"each minute":  windowsIn("America/St_Johns", "* * * * *", "1m"),
		"fixed hours":  windowsIn("Asia/Kathmandu", "0 0-23 * * *", "1h"),
		"half the day": windowsIn("Pacific/Kiritimati", "0 0 * * *", "12h", "0 12 * * *", "12h"),
	} {
		if !windows.HaveCommonOpening(7*24*time.Hour, parseWindows(t, always...)) {
			t.Errorf("%s: does not fit into what is never closed", name)
		}
	}
}

// longestOpening examines the openings between the times now and end, and returns the longest time for which
// all sets are open. It stops as soon as this time is longer than enough.
func longestOpening(sets []windows.Set, now, end time.Time, enough time.Duration) (longest time.Duration) {
	for now.Before(end) && longest <= enough {
		from, until := now, now.AddDate(1, 0, 0)
		for _, s := range sets {
			o := s.Opening(now)
			if o.From.After(from) {
				from = o.From
			}
			if o.Until.Before(until) {
				until = o.Until
			}
		}
		longest, now = max(longest, until.Sub(from)), until
	}
	return longest
}

// genSet generates random windows in one time zone. Many of them touch or overlap.
func genSet(t *rapid.T) windows.Set {
	day := rapid.SampledFrom([]string{"* * *", "* * *", "* * 0", "* * 1-5", "31 * *", "1,15 * *", "28,29 2 *", "1 3 *", "25-31 3,10 0"})
	zone := rapid.SampledFrom([]string{
		"UTC", "Europe/Berlin", "Asia/Shanghai", "America/St_Johns", "Australia/Lord_Howe", "Pacific/Kiritimati",
		"America/Havana", "Africa/Casablanca", "America/Santiago", "Africa/Cairo", "Asia/Kathmandu",
	}).Draw(t, "zone")
	var list []windows.Window
	hour := rapid.IntRange(0, 23).Draw(t, "hour")
	for range rapid.IntRange(1, 3).Draw(t, "windows") {
		length := rapid.IntRange(1, 6).Draw(t, "length")
		text := rapid.SampledFrom([]string{fmt.Sprint(hour), fmt.Sprintf("*/%d", length+1)}).Draw(t, "hours")
		list = append(list, windows.Window{Cron: "0 " + text + " " + day.Draw(t, "day"), Duration: fmt.Sprint(length*30, "m"), Timezone: zone})
		hour = (hour + length/2) % 24
	}
	set, err := windows.Parse(list)
	must.Succeed(t, err)
	t.Logf("%v", list)
	return set
}

// HaveCommonOpening does not know the current time, so its answer must be right at any time. The test compares it with the
// openings in which tasks start. An opening that HaveCommonOpening finds must be long enough. If HaveCommonOpening finds none, no opening may
// be long enough, from any time on.
func TestFitsAgreesWithTheOpenings(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		sets := []windows.Set{genSet(t)}
		if rapid.Bool().Draw(t, "two") {
			sets = append(sets, genSet(t))
		}
		needed := time.Duration(rapid.IntRange(0, 20).Draw(t, "quarters")) * 15 * time.Minute
		if from, fits := windows.FirstFit(needed, sets...); fits {
			if got := longestOpening(sets, from, from.Add(time.Minute), needed); got <= needed {
				t.Fatalf("at %s it is open for %s, which is not longer than %s", from, got, needed)
			}
			return
		}
		// Times around a change of the clocks, the end of a month or the end of a year are drawn more often.
		now := time.Date(rapid.IntRange(2024, 2051).Draw(t, "year"), time.Month(rapid.SampledFrom([]int{1, 2, 3, 3, 4, 9, 10, 11, 12}).Draw(t, "month")),
			rapid.IntRange(1, 31).Draw(t, "date"), 0, rapid.IntRange(0, 24*60).Draw(t, "minute"), 0, 0, time.UTC)
		if got := longestOpening(sets, now, now.AddDate(0, 0, 10), needed); got > needed {
			t.Fatalf("after %s it is open for %s, and never for %s", now, got, needed)
		}
	})
}
