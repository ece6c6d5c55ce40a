package windows

import (
	"iter"
	"time"

	"github.com/robfig/cron/v3"
)

// next is the first firing after t; zero: none in years.
func (w window) next(t time.Time) time.Time {
	if !w.wall {
		return w.elapsed(t.In(w.zone))
	}
	for wall := wallOf(t.In(w.zone)); ; {
		if wall = following(w.schedule, wall); wall.IsZero() {
			return time.Time{}
		}
		if at := instant(wall, w.zone); at.After(t) {
			return at.UTC()
		}
	}
}

// elapsed is that when hours are elapsed ones: whatever the clock on the wall
// shows twice fires twice, and not at all what it skips.
func (w window) elapsed(t time.Time) time.Time {
	for after := wallOf(t); ; after = wallOf(t).Add(-1) {
		wall := following(w.schedule, after)
		if wall.IsZero() {
			return wall
		}
		c := changeAfter(t)
		if at := wall.Add(-c.before); at.Before(c.at) {
			return at
		}
		t = c.at
	}
}

// change is one of clocks, and how much more than UTC they show before and after:
// as much, perhaps.
type change struct {
	at            time.Time
	before, after time.Duration
}

// changeAfter is the next, or nothing changes until then.
func changeAfter(t time.Time) change {
	_, at := t.ZoneBounds()
	switch {
	case at.IsZero():
		at = t.Add(year)
	case !at.After(t): // on the last day of leap years
		at = t.Add(day)
	}
	_, before := t.Zone()
	_, after := at.Zone()
	return change{at, time.Duration(before) * time.Second, time.Duration(after) * time.Second}
}

// around is when it fires that the clock on the wall has to show this, near a
// change: see the package.
func (w window) around(c change, wall time.Time) (at []time.Time) {
	if first := wall.Add(-c.before); first.Before(c.at) {
		at = append(at, first)
	}
	if second := wall.Add(-c.after); !second.Before(c.at) && (len(at) == 0 || !w.wall) {
		at = append(at, second)
	}
	if len(at) == 0 && w.wall { // jumped over
		at = append(at, c.at)
	}
	return at
}

// minutes are those of a day, on the wall, at which it fires.
func (w window) minutes() iter.Seq[int] {
	return func(yield func(int) bool) {
		for minute := range 24 * 60 {
			if w.schedule.Hour>>(minute/60)&1 == 1 && w.schedule.Minute>>(minute%60)&1 == 1 && !yield(minute) {
				return
			}
		}
	}
}

// following is the first firing after t, which is in UTC as the schedule is: from
// a full minute on it is found without a step for each second.
func following(s *cron.SpecSchedule, t time.Time) time.Time {
	return s.Next(t.Truncate(time.Minute).Add(time.Minute - time.Second))
}

// wallOf is what the clock on the wall shows, as if it were UTC.
func wallOf(t time.Time) time.Time {
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// instant is when the clock on the wall shows this for the first time, or jumps
// over it.
func instant(wall time.Time, zone *time.Location) time.Time {
	at := time.Date(wall.Year(), wall.Month(), wall.Day(), wall.Hour(), wall.Minute(), 0, 0, zone)
	since, until := at.ZoneBounds()
	switch shown := wallOf(at); {
	case shown.After(wall): // jumped over
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
