package windows

import (
	"time"

	"github.com/robfig/cron/v3"
)

// HaveCommonOpening searches `years` years from firstYear on. Within 28 years, each date (and each day of a clock change) falls on each day of
// the week. The years are fixed, so the answer does not depend on the current time.
const (
	firstYear = 2024
	years     = 28
	day       = 24 * time.Hour
	year      = 366 * day

	// lead is the length of the first part of a searched period. Openings in this part may be missing, because their windows fired before
	// the searched period.
	lead = MaxDuration + 3*day
)

// HaveCommonOpening reports whether all sets of windows are at some time open together for longer than minOpen. If not, a task that needs this
// time can never start. A set without windows is always open. The answer is exact for windows of whole minutes. For other windows, it may be
// true although the longest common opening is up to a minute too short.
func HaveCommonOpening(minOpen time.Duration, sets ...Set) bool {
	_, fits := firstCommonOpening(minOpen, sets)
	return fits
}

// firstCommonOpening returns the start of the first common opening, and whether there is one (see HaveCommonOpening). The start is zero if the
// sets are always open, or if minOpen is shorter than the seconds part of a window's duration.
func firstCommonOpening(minOpen time.Duration, sets []Set) (start time.Time, found bool) {
	rest, withWindows := time.Duration(0), make([]Set, 0, len(sets))
	for _, s := range sets {
		for _, w := range s.windows {
			rest = max(rest, w.duration%time.Minute)
		}
		if len(s.windows) > 0 {
			withWindows = append(withWindows, s)
		}
	}
	if len(withWindows) == 0 || rest > minOpen {
		return time.Time{}, true
	}
	minMinutes := int((minOpen-rest)/time.Minute) + 1 // minimum number of open minutes; together with the rest they are longer than minOpen
	from := time.Date(firstYear, 1, 1, 0, 0, 0, 0, time.UTC)
	for end := from.AddDate(years, 0, 0); from.Before(end); from = from.Add(year) {
		open := commonOpenMinutes(withWindows, from, lead+year+minOpen+time.Minute)
		if at, found := open.findConsecutiveMinutes(minMinutes); found {
			return from.Add(time.Duration(at) * time.Minute), true
		}
	}
	return time.Time{}, false
}

// commonOpenMinutes returns the minutes in which all sets are open. It examines the period that starts at begin and has this length. Minute 0
// starts at begin.
func commonOpenMinutes(sets []Set, begin time.Time, length time.Duration) minuteSet {
	all := newMinuteSet(length)
	for i, s := range sets {
		open := newMinuteSet(length)
		for _, w := range s.windows {
			w.addOpenMinutes(open, begin, begin.Add(length))
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

// addOpenMinutes adds to the set `open` the minutes between begin and end in which the window is open. It computes the open minutes of a
// day without a change of clocks only once.
func (w parsedWindow) addOpenMinutes(open minuteSet, begin, end time.Time) {
	perFiring, ordinaryDay := w.openMinutesPerFiring(), w.openMinutesPerDay()
	days := cron.SpecSchedule{Second: 1, Minute: 1, Hour: 1, Dom: w.schedule.Dom, Month: w.schedule.Month, Dow: w.schedule.Dow, Location: time.UTC}
	var c clockChange
	for date := nextFiringUTC(&days, begin.Add(2*day)); !date.IsZero() && date.Before(end); date = nextFiringUTC(&days, date.Add(day-1)) {
		if twoDaysEarlier := date.Add(-2 * day); !twoDaysEarlier.Before(c.at) {
			c = clockChangeAfter(twoDaysEarlier.In(w.zone))
		}
		if midnight := date.Add(-c.offsetBefore); !midnight.Add(day).After(c.at) {
			open.addMinutes(ordinaryDay, minutesBetween(begin, midnight))
			continue
		}
		for minute := range w.firingMinutes() {
			for _, at := range w.firingsNear(c, date.Add(time.Duration(minute)*time.Minute)) {
				open.addMinutes(perFiring, minutesBetween(begin, at))
			}
		}
	}
}

func minutesBetween(begin, at time.Time) int { return int(at.Sub(begin) / time.Minute) }

// openMinutesPerFiring returns the minutes, counted from a firing, in which the window is open because of this firing.
func (w parsedWindow) openMinutesPerFiring() minuteSet {
	open := newMinuteSet(w.duration)
	for i := range int(w.duration / time.Minute) {
		open[i/64] |= 1 << (i % 64)
	}
	return open
}

// openMinutesPerDay returns the minutes, counted from midnight, in which the window is open because of the firings of one day.
func (w parsedWindow) openMinutesPerDay() minuteSet {
	open, perFiring := newMinuteSet(day+w.duration), w.openMinutesPerFiring()
	for minute := range w.firingMinutes() {
		open.addMinutes(perFiring, minute)
	}
	return open
}
