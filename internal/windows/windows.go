// Package windows computes when recurring windows are open. A window is open for a duration after each firing of a cron expression in a time
// zone.
//
// On a day on which clocks change, a window with a fixed hour fires once. If the clocks skip its hour, it fires when the clocks jump. If its
// hour occurs twice, it fires the first time. A window whose hour field begins with * fires in both hours.
//
// The package has no clock. The caller passes the time.
package windows

import (
	"errors"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // for images without zone files

	"github.com/robfig/cron/v3"
)

// Limits of a list of windows.
const (
	MaxWindows  = 16
	MinDuration = time.Minute
	MaxDuration = 7 * 24 * time.Hour

	maxCron = 100 // bytes
)

const (
	horizon      = 48 * time.Hour // windows that touch are joined at least this far before and after now
	refreshAfter = 24 * time.Hour // an opening is computed again after this time
)

// Window is a window as operators write it.
type Window struct {
	Cron     string `json:"cron"`     // minute, hour, day of month, month, day of week
	Duration string `json:"duration"` // in the format of Go: 4h, 90m
	Timezone string `json:"timezone"` // IANA name; empty means UTC
}

// FromText parses a window from one line: five fields of cron, a duration, and optionally a time zone. Without a time zone, the window is in
// UTC. FromText does not check the values, because Parse does.
func FromText(line string) (Window, error) {
	fields := strings.Fields(line)
	if len(fields) < 6 || len(fields) > 7 {
		return Window{}, errors.New("must be five fields of cron, a duration and optionally a time zone, such as 0 1 * * * 4h Asia/Shanghai")
	}
	fields = append(fields, "UTC")
	return Window{Cron: strings.Join(fields[:5], " "), Duration: fields[5], Timezone: fields[6]}, nil
}

// Opening is a period in which tasks may start.
type Opening struct {
	From, Until time.Time
	RecomputeAt time.Time // when to compute the opening again; never after Until
}

// Set is a list of windows. It is open while at least one of its windows is open.
type Set struct{ windows []parsedWindow }

type parsedWindow struct {
	schedule    *cron.SpecSchedule
	zone        *time.Location
	byWallClock bool // fires by the wall clock, not by elapsed hours
	duration    time.Duration
}

// Parse checks entries and returns the Set of their windows. Its errors name the entry and the field.
func Parse(entries []Window) (Set, error) {
	if len(entries) > MaxWindows {
		return Set{}, fmt.Errorf("windows: at most %d entries", MaxWindows)
	}
	s := Set{windows: make([]parsedWindow, len(entries))}
	for i, w := range entries {
		var err error
		if s.windows[i], err = parseWindow(w); err != nil {
			return Set{}, fmt.Errorf("windows[%d].%w", i, err)
		}
	}
	return s, nil
}

// parseWindow parses and checks a window that an operator has written. An error begins with the name of the field.
func parseWindow(written Window) (parsedWindow, error) {
	schedule, err := parseCron(written.Cron)
	if err != nil {
		return parsedWindow{}, fmt.Errorf("cron: %w", err)
	}
	duration, err := time.ParseDuration(written.Duration)
	if err != nil || duration < MinDuration || duration > MaxDuration {
		return parsedWindow{}, fmt.Errorf("duration: must be between %s and %s, such as 4h or 90m", MinDuration, MaxDuration)
	}
	zone, err := time.LoadLocation(written.Timezone)
	if err != nil || written.Timezone == "Local" {
		return parsedWindow{}, errors.New("timezone: must be an IANA name, such as Asia/Shanghai")
	}
	parsed := parsedWindow{schedule: schedule, zone: zone, duration: duration}
	parsed.byWallClock = !strings.HasPrefix(strings.Fields(written.Cron)[1], "*")
	schedule.Location = time.UTC // wall-clock times are computed as if they were UTC
	if parsed.nextFiring(time.Unix(0, 0)).IsZero() {
		return parsedWindow{}, errors.New("cron: never fires")
	}
	return parsed, nil
}

// parseCron parses a cron expression of five plain fields. It refuses the expression TZ=UTC, which makes the library panic, and @every, which
// has no time of day.
func parseCron(expression string) (_ *cron.SpecSchedule, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("not a cron expression")
		}
	}()
	if len(expression) > maxCron || len(strings.Fields(expression)) != 5 {
		return nil, errors.New("must have five fields: minute, hour, day of month, month, day of week")
	}
	const fields = cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow
	parsed, err := cron.NewParser(fields).Parse(strings.Join(strings.Fields(expression), " "))
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller adds the name of the field
	}
	schedule, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return nil, errors.New("not a cron expression")
	}
	return schedule, nil
}

// Opening returns the opening that contains now, or the next opening if all windows are closed now. Windows that overlap or follow each other
// without a gap form one opening. Its beginning and its end are exact if they are at most two days away from now. If no window fires for
// years, the opening is empty and lies one day ahead.
func (s Set) Opening(now time.Time) Opening {
	o := s.firstOpening(now)
	if o.From.IsZero() {
		later := now.Add(refreshAfter)
		return Opening{From: later, Until: later, RecomputeAt: later}
	}
	for touching := true; touching && o.From.After(now.Add(-horizon)); {
		touching = false
		for _, w := range s.windows {
			// from is the first firing of w whose window ends at or after the start of the opening. If from is before o.From, the
			// opening begins with it.
			if from := w.nextFiring(o.From.Add(-w.duration - 1)); !from.IsZero() && from.Before(o.From) {
				o.From, touching = from, true
			}
		}
	}
	for touching := true; touching && o.Until.Before(now.Add(horizon)); {
		touching = false
		for _, w := range s.windows {
			// from is the start of the first window of w that ends after the opening o. If from is not after o.Until, this
			// window extends the opening.
			if from := w.nextFiring(o.Until.Add(-w.duration)); !from.IsZero() && !from.After(o.Until) {
				o.Until, touching = from.Add(w.duration), true
			}
		}
	}
	o.RecomputeAt = now.Add(refreshAfter)
	if o.Until.Before(o.RecomputeAt) {
		o.RecomputeAt = o.Until
	}
	return o
}

// firstOpening returns the first opening of a single window that ends after now. It returns the zero Opening if no window fires for years.
func (s Set) firstOpening(now time.Time) Opening {
	var o Opening
	for _, w := range s.windows {
		from := w.nextFiring(now.Add(-w.duration))
		if !from.IsZero() && (o.From.IsZero() || from.Before(o.From)) {
			o = Opening{From: from, Until: from.Add(w.duration)}
		}
	}
	return o
}
