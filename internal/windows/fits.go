package windows

import (
	"time"

	"github.com/robfig/cron/v3"
)

// The calendar that Fits searches. Within 28 years each date falls on each day of the week, and so do the days on which clocks change. The
// calendar is fixed, so the answer does not depend on the current time.
const (
	firstYear = 2024
	years     = 28
	day       = 24 * time.Hour
	year      = 366 * day

	// lead is the time at the start of a search in which openings may be missing, because their windows began before it.
	lead = MaxDuration + 3*day
)

// Fits reports whether all sets are ever open at the same time for longer than needed. If not, a task that needs this time could never
// start. A set without windows is always open. The answer is exact for windows of whole minutes. For other windows it is also true if
// needed is less than a minute too long.
func Fits(needed time.Duration, sets ...Set) bool {
	_, fits := firstFit(needed, sets)
	return fits
}

// firstFit also returns the start of the first opening that is long enough. The zero time means that the sets are always open, or that
// needed is shorter than the seconds part of a window's duration.
func firstFit(needed time.Duration, sets []Set) (time.Time, bool) {
	rest, closing := time.Duration(0), make([]Set, 0, len(sets))
	for _, s := range sets {
		for _, w := range s.windows {
			rest = max(rest, w.duration%time.Minute)
		}
		if len(s.windows) > 0 {
			closing = append(closing, s)
		}
	}
	if len(closing) == 0 || rest > needed {
		return time.Time{}, true
	}
	least := int((needed-rest)/time.Minute) + 1 // minutes that, with the rest, are longer than needed
	from := time.Date(firstYear, 1, 1, 0, 0, 0, 0, time.UTC)
	for end := from.AddDate(years, 0, 0); from.Before(end); from = from.Add(year) {
		open := openAll(closing, from, lead+year+needed+time.Minute)
		if at, found := open.run(least); found {
			return from.Add(time.Duration(at) * time.Minute), true
		}
	}
	return time.Time{}, false
}

// openAll returns the minutes, from from on and for the given length, in which all sets are open.
func openAll(sets []Set, from time.Time, length time.Duration) minutes {
	all := minutesOf(length)
	for i, s := range sets {
		open := minutesOf(length)
		for _, w := range s.windows {
			w.mark(open, from, from.Add(length))
		}
		for n := range all {
			if i == 0 {
				all[n] = open[n]
			}
			all[n] &= open[n]
		}
	}
	return all
}

// mark sets the minutes in which the window is open. All days are alike, except the days around a change of clocks.
func (w window) mark(open minutes, from, until time.Time) {
	once, alike := w.once(), w.day()
	days := cron.SpecSchedule{Second: 1, Minute: 1, Hour: 1, Dom: w.schedule.Dom, Month: w.schedule.Month, Dow: w.schedule.Dow, Location: time.UTC}
	var c change
	for date := following(&days, from.Add(2*day)); !date.IsZero() && date.Before(until); date = following(&days, date.Add(day-1)) {
		if lately := date.Add(-2 * day); !lately.Before(c.at) {
			c = changeAfter(lately.In(w.zone))
		}
		if midnight := date.Add(-c.before); !midnight.Add(day).After(c.at) {
			open.add(alike, minutesFrom(from, midnight))
			continue
		}
		for minute := range w.minutes() {
			for _, at := range w.around(c, date.Add(time.Duration(minute)*time.Minute)) {
				open.add(once, minutesFrom(from, at))
			}
		}
	}
}

func minutesFrom(from, at time.Time) int { return int(at.Sub(from) / time.Minute) }

// once returns the minutes that one firing opens.
func (w window) once() minutes {
	open := minutesOf(w.duration)
	for i := range int(w.duration / time.Minute) {
		open[i/64] |= 1 << (i % 64)
	}
	return open
}

// day returns the minutes that the firings of one day open, counted from midnight.
func (w window) day() minutes {
	open, once := minutesOf(day+w.duration), w.once()
	for minute := range w.minutes() {
		open.add(once, minute)
	}
	return open
}
