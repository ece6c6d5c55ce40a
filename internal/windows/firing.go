package windows

import (
	"iter"
	"time"

	"github.com/robfig/cron/v3"
)

// nextFiring returns the first firing after t. It returns the zero time if the schedule does not fire for years.
func (w window) nextFiring(t time.Time) time.Time {
	if !w.byWallClock {
		return w.nextByElapsedHours(t.In(w.zone))
	}
	for wall := wallClock(t.In(w.zone)); ; {
		if wall = nextFiringUTC(w.schedule, wall); wall.IsZero() {
			return time.Time{}
		}
		if at := instant(wall, w.zone); at.After(t) {
			return at.UTC()
		}
	}
}

// nextByElapsedHours returns the first firing after t of a window that counts elapsed hours (the hour field of its
// cron expression begins with *). On days of a clock change, such windows differ from others: they fire twice at a
// wall-clock time that occurs twice, and not at a time that is skipped.
func (w window) nextByElapsedHours(t time.Time) time.Time {
	for after := wallClock(t); ; after = wallClock(t).Add(-1) {
		wall := nextFiringUTC(w.schedule, after)
		if wall.IsZero() {
			return wall
		}
		c := clockChangeAfter(t)
		if at := wall.Add(-c.offsetBefore); at.Before(c.at) {
			return at
		}
		t = c.at
	}
}

// clockChange is a change of clocks in a zone, with the offsets from UTC before and after it. The offsets can be equal.
type clockChange struct {
	at                        time.Time
	offsetBefore, offsetAfter time.Duration
}

// clockChangeAfter returns the first change after t. If the zone data has no later change, it returns a later time
// with equal offsets, before which the clock does not change.
func clockChangeAfter(t time.Time) clockChange {
	_, at := t.ZoneBounds()
	switch {
	case at.IsZero():
		at = t.Add(year)
	case !at.After(t): // ZoneBounds does this on the last day of leap years
		at = t.Add(day)
	}
	_, before := t.Zone()
	_, after := at.Zone()
	return clockChange{at, time.Duration(before) * time.Second, time.Duration(after) * time.Second}
}

// firingsNear returns the times at which the window fires for the wall-clock time wall near the change c. The comment
// of the package describes the rules for skipped and repeated times.
func (w window) firingsNear(c clockChange, wall time.Time) (at []time.Time) {
	if first := wall.Add(-c.offsetBefore); first.Before(c.at) {
		at = append(at, first)
	}
	if second := wall.Add(-c.offsetAfter); !second.Before(c.at) && (len(at) == 0 || !w.byWallClock) {
		at = append(at, second)
	}
	if len(at) == 0 && w.byWallClock { // this wall-clock time is skipped
		at = append(at, c.at)
	}
	return at
}

// firingMinutes yields the minutes of a day, by the wall clock, at which the window fires.
func (w window) firingMinutes() iter.Seq[int] {
	return func(yield func(int) bool) {
		for minute := range 24 * 60 {
			if w.schedule.Hour>>(minute/60)&1 == 1 && w.schedule.Minute>>(minute%60)&1 == 1 && !yield(minute) {
				return
			}
		}
	}
}

// nextFiringUTC returns the first firing after t. Both t and the schedule are in UTC. The search starts at a full minute, because the library
// would otherwise step through each second.
func nextFiringUTC(s *cron.SpecSchedule, t time.Time) time.Time {
	return s.Next(t.Truncate(time.Minute).Add(time.Minute - time.Second))
}

// wallClock returns the wall-clock time of t as if it were UTC.
func wallClock(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// instant returns the first time at which the wall clock shows wall. If the clock skips wall, it returns the time of the change.
func instant(wall time.Time, zone *time.Location) time.Time {
	at := time.Date(wall.Year(), wall.Month(), wall.Day(), wall.Hour(), wall.Minute(), 0, 0, zone)
	since, until := at.ZoneBounds()
	switch shown := wallClock(at); {
	case shown.After(wall): // this wall-clock time is skipped
		return since
	case shown.Before(wall):
		return until
	case since.IsZero():
		return at
	}
	_, offset := at.Zone()
	_, before := since.Add(-time.Nanosecond).Zone()
	if earlier := at.Add(time.Duration(offset-before) * time.Second); earlier.Before(since) {
		return earlier
	}
	return at
}
