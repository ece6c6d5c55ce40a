package windows

import (
	"iter"
	"time"

	"github.com/robfig/cron/v3"
)

// nextFiring returns the first firing of the window that is later than `after`. It returns the zero time if the schedule does not fire for
// years.
func (w parsedWindow) nextFiring(after time.Time) time.Time {
	if !w.byWallClock {
		return w.nextFiringByElapsedHours(after.In(w.zone))
	}
	for wall := wallClockAsUTC(after.In(w.zone)); ; {
		if wall = nextFiringUTC(w.schedule, wall); wall.IsZero() {
			return time.Time{}
		}
		if at := firstTimeAt(wall, w.zone); at.After(after) {
			return at.UTC()
		}
	}
}

// nextFiringByElapsedHours returns the first firing after `from`, for a window whose hour field begins with *. If a wall-clock time occurs
// twice, such a window fires both times. If a wall-clock time is skipped, it does not fire.
func (w parsedWindow) nextFiringByElapsedHours(from time.Time) time.Time {
	for after := wallClockAsUTC(from); ; after = wallClockAsUTC(from).Add(-1) {
		wall := nextFiringUTC(w.schedule, after)
		if wall.IsZero() {
			return wall
		}
		c := clockChangeAfter(from)
		if at := wall.Add(-c.offsetBefore); at.Before(c.at) {
			return at
		}
		from = c.at
	}
}

// clockChange is a change of clocks in a zone, with the offsets from UTC before and after the change. The offsets can be equal.
type clockChange struct {
	at                        time.Time
	offsetBefore, offsetAfter time.Duration
}

// clockChangeAfter returns the first change of clocks after `from`, in the zone of `from`. If there is none, it returns a clockChange with
// equal offsets at a later time.
func clockChangeAfter(from time.Time) clockChange {
	_, at := from.ZoneBounds()
	switch {
	case at.IsZero():
		at = from.Add(year)
	case !at.After(from): // on the last day of a leap year, ZoneBounds returns a time that is not after `from`
		at = from.Add(day)
	}
	_, before := from.Zone()
	_, after := at.Zone()
	return clockChange{at, time.Duration(before) * time.Second, time.Duration(after) * time.Second}
}

// firingsNear returns the times at which the window fires for the wall-clock time wallTime, near a change of clocks. The rules are in the
// comment of the package.
func (w parsedWindow) firingsNear(change clockChange, wallTime time.Time) (at []time.Time) {
	if first := wallTime.Add(-change.offsetBefore); first.Before(change.at) {
		at = append(at, first)
	}
	if second := wallTime.Add(-change.offsetAfter); !second.Before(change.at) && (len(at) == 0 || !w.byWallClock) {
		at = append(at, second)
	}
	if len(at) == 0 && w.byWallClock { // this wall-clock time is skipped
		at = append(at, change.at)
	}
	return at
}

// firingMinutes yields the minutes of a day, by the wall clock, at which the window fires.
func (w parsedWindow) firingMinutes() iter.Seq[int] {
	return func(yield func(int) bool) {
		for minute := range 24 * 60 {
			if w.schedule.Hour>>(minute/60)&1 == 1 && w.schedule.Minute>>(minute%60)&1 == 1 && !yield(minute) {
				return
			}
		}
	}
}

// nextFiringUTC returns the first firing of schedule, in UTC, that is later than `after`. The search starts one second before a full
// minute, so that the library need not step through each second.
func nextFiringUTC(schedule *cron.SpecSchedule, after time.Time) time.Time {
	return schedule.Next(after.Truncate(time.Minute).Add(time.Minute - time.Second))
}

// wallClockAsUTC returns the date and the time of day of a time, in its own zone, as a time in UTC.
func wallClockAsUTC(at time.Time) time.Time {
	return time.Date(at.Year(), at.Month(), at.Day(), at.Hour(), at.Minute(), at.Second(), at.Nanosecond(), time.UTC)
}

// firstTimeAt returns the first time at which the wall clock in zone shows wallTime. If a change of clocks skips
// wallTime, it returns the time of the change.
func firstTimeAt(wallTime time.Time, zone *time.Location) time.Time {
	at := time.Date(wallTime.Year(), wallTime.Month(), wallTime.Day(), wallTime.Hour(), wallTime.Minute(), 0, 0, zone)
	since, until := at.ZoneBounds()
	switch shown := wallClockAsUTC(at); {
	case shown.After(wallTime): // this wall-clock time is skipped
		return since
	case shown.Before(wallTime):
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
