package api

import (
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// The series of a pool has steps of ten minutes. held_min and held_max also include changes within a step. The
// capacity is the capacity at the end of the step.
func TestSeriesGoesBackFromThePresent(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 4, 30, 0, time.UTC)
	minute := func(hour, minute int) int64 { return time.Date(2026, 3, 1, hour, minute, 0, 0, time.UTC).Unix() / 60 }
	m := store.PoolMinutes{Now: now, Created: now.Add(-30 * 24 * time.Hour), Held: 4, Capacity: 8, CapacityBefore: 5, Minutes: []store.PoolMinute{
		{At: minute(11, 31), Granted: 5, Capacity: 5},
		{At: minute(11, 33), Ended: 4, Lapsed: 1, Capacity: 5},
		{At: minute(11, 35), Granted: 2, Capacity: 8},
		{At: minute(12, 1), Granted: 2, Ended: 1, Capacity: -1},
	}}
	s := toAPISeries("p", m, newSeriesSpan("24h"))
	if p := s.Points[140]; p.GrantedDayBefore == nil || *p.GrantedDayBefore != 0 {
		t.Errorf("one day before: %+v", p)
	}
	if len(s.Points) != 144 || !s.From.Equal(time.Date(2026, 2, 28, 12, 10, 0, 0, time.UTC)) {
		t.Fatalf("%d points from %v", len(s.Points), s.From)
	}
	last, busy, before := s.Points[143], s.Points[140], s.Points[139]
	if last.Held != 4 || last.Granted != 2 || last.Ended != 1 || last.HeldMin != 3 || last.Capacity != 8 {
		t.Errorf("the last step: %+v", last)
	}
	if busy.Held != 3 || busy.HeldMin != 0 || busy.HeldMax != 5 || busy.Granted != 7 || busy.Lapsed != 1 || busy.Capacity != 8 || !busy.At.Equal(time.Date(2026, 3, 1, 11, 40, 0, 0, time.UTC)) {
		t.Errorf("the busy step: %+v", busy)
	}
	if before.Held != 0 || before.Capacity != 5 {
		t.Errorf("the step before: %+v", before)
	}
	m.Minutes = append(m.Minutes, store.PoolMinute{At: minute(12, 5), Granted: 3, Capacity: -1}) // after the clock of the database was read
	if s = toAPISeries("p", m, newSeriesSpan("24h")); s.Points[143].Granted != 5 || s.Points[143].Held != 4 || s.Points[140].Granted != 7 {
		t.Errorf("with a minute beyond now: %+v, %+v", s.Points[143], s.Points[140])
	}
	yesterday := []store.PoolMinute{{At: minute(11, 20) - 1440, Granted: 9, Failed: 1}, {At: minute(11, 33) - 1440, Granted: 3, Failed: 2}, {At: minute(11, 39) - 1440, Granted: 1}, {At: minute(12, 5) - 1440, Granted: 8}}
	m.Minutes = append(yesterday, m.Minutes...)
	s = toAPISeries("p", m, newSeriesSpan("24h"))
	if p, last := s.Points[140], s.Points[143]; *p.GrantedDayBefore != 4 || *p.FailedDayBefore != 2 || *last.GrantedDayBefore != 0 || p.Granted != 7 || last.Held != 4 {
		t.Errorf("one day before: %+v, %+v", p, last)
	}
	m.Created = now.Add(-24 * time.Hour)
	if s = toAPISeries("p", m, newSeriesSpan("24h")); s.Points[10].GrantedDayBefore != nil {
		t.Errorf("a pool that was created in this time: %+v", s.Points[10])
	}
	m.Created = now.Add(-10 * time.Minute)
	if young := toAPISeries("p", m, newSeriesSpan("24h")); len(young.Points) != 2 {
		t.Errorf("%d points of a pool of ten minutes", len(young.Points))
	}
}
