package windows

import (
	"time"

	"github.com/robfig/cron/v3"
)

// The calendar that is looked at: within 28 years each date falls on each day of
// the week, and so do the days on which clocks change. It is the same whenever it
// is asked, so that the answer is.
const (
	firstYear = 2024
	years     = 28
	day       = 24 * time.Hour
	year      = 366 * day

	// lead is a time of which openings may be missing at the start of what is
	// looked at: windows that began earlier.
	lead = MaxDuration + 3*day
)

// Fits says whether the sets are ever open together for longer than that: not so
// for a task that needs it, which could never start. A set without windows is
// always open. It is exact for windows of whole minutes; with others it also says
// so of what is less than a minute too long.
func Fits(needed time.Duration, sets ...Set) bool {
	_, fits := firstFit(needed, sets)
	return fits
}

// firstFit is also the start of the first opening that is long enough; zero: always.
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
	least := int((needed-rest)/time.Minute) + 1 // minutes, with the rest longer than needed
	from := time.Date(firstYear, 1, 1, 0, 0, 0, 0, time.UTC)
	for end := from.AddDate(years, 0, 0); from.Before(end); from = from.Add(year) {
		open := openAll(closing, from, lead+year+needed+time.Minute)
		if at, found := open.run(least); found {
			return from.Add(time.Duration(at) * time.Minute), true
		}
	}
	return time.Time{}, false
}

// openAll is when all sets are open, for that long.
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

// mark sets the minutes in which the window is open. All days but those around a
// change of clocks are alike.
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

// once is what one firing opens.
func (w window) once() minutes {
	open := minutesOf(w.duration)
	for i := range int(w.duration / time.Minute) {
		open[i/64] |= 1 << (i % 64)
	}
	return open
}

// day is what the firings of one day open, from its midnight on.
func (w window) day() minutes {
	open, once := minutesOf(day+w.duration), w.once()
	for minute := range w.minutes() {
		open.add(once, minute)
	}
	return open
}
