package limits

import (
	"sort"
	"time"

	"github.com/fleetslots/dispatcher/limits/policy"
)

// periodStarts returns the starts of four successive calendar periods. The second period contains the time `around`. A script then selects the
// current period by the clock of Redis, which may differ from this time by less than a period.
func periodStarts(period policy.Period, zone *time.Location, around time.Time) (starts [4]time.Time) {
	y, m, d := around.In(zone).Date()
	start := func(n int) time.Time {
		switch period {
		case policy.Week:
			monday := (int(around.In(zone).Weekday()) + 6) % 7
			return startOfDay(y, m, d-monday+7*n, zone)
		case policy.Month:
			return startOfDay(y, m+time.Month(n), 1, zone)
		}
		return startOfDay(y, m, d+n, zone)
	}
	return [4]time.Time{start(-1), start(0), start(1), start(2)}
}

// startOfDay returns the first instant of a day in a zone, to the millisecond. If a clock change skips midnight, the day begins later than
// midnight.
func startOfDay(year int, month time.Month, day int, zone *time.Location) time.Time {
	midnight := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	wanted := midnight.Format(time.DateOnly)
	from := midnight.Add(-15 * time.Hour) // the offsets of zones are between -12 h and +14 h
	ms := sort.Search(int(30*time.Hour/time.Millisecond), func(ms int) bool {
		return from.Add(time.Duration(ms)*time.Millisecond).In(zone).Format(time.DateOnly) >= wanted
	})
	return from.Add(time.Duration(ms) * time.Millisecond)
}
