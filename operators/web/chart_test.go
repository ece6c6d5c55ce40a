package web

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// TestChartOfAnHour checks the chart of the last hour: its path is short but keeps all peaks, and each bar covers a
// minute.
func TestChartOfAnHour(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var points []point
	for i := range pointsKept {
		p := point{at: start.Add(time.Duration(i) * pointEvery).UnixMilli(), held: 30, capacity: 60, grants: 2, denied: 1}
		switch {
		case i == 333:
			p.held = 57
		case i > 600:
			p.capacity = 40
		}
		points = append(points, p)
	}
	c := newHourChart(points, 300, 48)
	if n := strings.Count(c.Line, "L"); n > 160 {
		t.Errorf("%d stretches for 300 columns", n)
	}
	if peak := fmt.Sprintf(" %.1f", 48*(1-0.92*57.0/60)); !strings.Contains(c.Line, peak) {
		t.Errorf("the peak is not on the line: %s", c.Line)
	}
	if strings.Count(c.Limit, "V") != 1 {
		t.Errorf("the limit has one step: %s", c.Limit)
	}
	c.drawBars(points, start.Add(30*time.Minute))
	if len(c.Grants) < 60 || len(c.Grants) > 61 || c.MaxBar != 24 || c.MaxDenied != 12 || c.Counting == nil {
		t.Errorf("%d bars up to %d, %d denied, counted since %v", len(c.Grants), c.MaxBar, c.MaxDenied, c.Counting)
	}
	short := newHourChart(points[:100], 720, 130)
	if short.drawBars(points[:100], start); len(short.Grants) != 100 || short.MaxBar != 2 || short.Counting != nil {
		t.Errorf("%d bars of eight minutes, up to %d", len(short.Grants), short.MaxBar)
	}
}

// TestRecalledHour checks the chart of an hour that a new replica reads from the log. It begins with the creation
// of the pool, ends before the first point that the replica observed itself, and shows the capacity at each time.
func TestRecalledHour(t *testing.T) {
	t.Parallel()
	h := newHistory()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	uses := []store.PoolUse{{Pool: "old", Capacity: 60, Held: 7}, {Pool: "new", Capacity: 5}, {Pool: "lost", Capacity: 9}}
	h.addPoints(now, uses)
	h.prependPoints(now.Add(12*time.Second), store.SlotActivity{
		Back: time.Hour, Held: map[string]int{"old": 8},
		Steps: []store.SlotChanges{{Pool: "old", Step: 10, Granted: 3, Ended: 2, Lapsed: 1}, {Pool: "old", Step: 0, Granted: 1}},
		Resizes: []store.Resize{
			{Pool: "old", Ago: 10 * time.Minute, CapacityBefore: 30},
			{Pool: "lost", Ago: 10 * time.Minute, CapacityBefore: -1},
			{Pool: "new", Ago: time.Minute, CapacityBefore: -1, Created: true},
		},
	}, uses)
	old := h.lastHour("old")
	at := func(ago time.Duration) point { return old[len(old)-1-int((ago-12*time.Second)/pointEvery)] }
	if len(old) < pointsKept-3 || at(12*time.Second).held != 7 || at(47*time.Second).held != 7 || at(52*time.Second).grants != 3 || at(52*time.Second).reaps != 1 || at(57*time.Second).held != 6 {
		t.Errorf("%d points; lately %+v", len(old), old[len(old)-15:])
	}
	for i, p := range old[1:] {
		if p.at-old[i].at < 2500 {
			t.Errorf("point %d comes %d ms after the one before", i+1, p.at-old[i].at)
		}
	}
	if at(9*time.Minute).capacity != 60 || at(11*time.Minute).capacity != 30 || h.lastHour("lost")[0].capacity != 9 {
		t.Errorf("capacities %d, %d, %d", at(9*time.Minute).capacity, at(11*time.Minute).capacity, h.lastHour("lost")[0].capacity)
	}
	if n := len(h.lastHour("new")); n < 10 || n > 14 {
		t.Errorf("%d points of a pool of a minute", n)
	}
	if lately := h.recentCounts("old"); lately.Grants != 3 || lately.Reaps != 1 {
		t.Errorf("of the last minute: %+v", lately)
	}
}
