package web

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

// hourSeries returns the series of a pool for the last `minutes` minutes. In each minute, two slots were granted.
func hourSeries(start time.Time, minutes int) operators.Series {
	s := operators.Series{From: operators.Time{Time: start}, StepMS: time.Minute.Milliseconds()}
	for i := range minutes {
		s.Points = append(s.Points, operators.SeriesPoint{At: operators.Time{Time: start.Add(time.Duration(i+1) * time.Minute)}, Held: 30, Capacity: 60, Granted: 2, Ended: 2})
	}
	return s
}

// TestChartOfAnHour checks the chart of the last hour: its curve keeps a peak and a change of the capacity, it ends with the present
// numbers, and each bar covers a minute.
func TestChartOfAnHour(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := hourSeries(start, 60)
	s.Points[27].Held = 57
	for i := 50; i < 60; i++ {
		s.Points[i].Capacity = 40
	}
	s.Points[5].Lapsed, s.Points[5].Failed = 3, 4
	denied := denials{since: start.Add(30 * time.Minute), byMinute: map[int64]int64{minuteOf(start.Add(40 * time.Minute)): 12}}
	p := newPlot(s, timeRanges()[0], 33, 40, denied)
	if peak := fmt.Sprintf(" %.1f", plotHeight*(1-0.92*57.0/60)); !strings.Contains(p.Line, peak) || strings.Count(p.Line, "L") != 60 {
		t.Errorf("the peak is not on the line: %s", p.Line)
	}
	if strings.Count(p.Limit, "V") != 1 {
		t.Errorf("the limit has one step: %s", p.Limit)
	}
	if p.Span != time.Hour || p.Top != 60 || p.Band != "" || p.Label != "between 30 and 57 slots held recently, now 33 of 40" {
		t.Errorf("chart: %v up to %d, %q", p.Span, p.Top, p.Label)
	}
	if len(p.Grants) != 60 || len(p.Reaps) != 1 || len(p.Failed) != 1 || p.MaxBar != 5 || p.Grants[0].Title != "2 granted in a minute" {
		t.Errorf("%d bars, %d taken back, %d failed, up to %d: %+v", len(p.Grants), len(p.Reaps), len(p.Failed), p.MaxBar, p.Grants[0])
	}
	if len(p.Denied) != 1 || p.MaxDenied != 12 || p.Denied[0].X != p.Grants[39].X || p.Counting == nil {
		t.Errorf("denied %+v, counted since %v", p.Denied, p.Counting)
	}
	if v := p.Values; len(v.At) != 60 || v.At[0] != 60 || v.LastText() != "2026-01-01 01:00:00Z: 33 of 40 held" || v.Reaped[5] != 3 {
		t.Errorf("values: %+v", v)
	}
	if young := newPlot(hourSeries(start, 4), timeRanges()[0], 30, 60, denials{since: start}); young.Span != minChartSpan || young.Counting != nil || len(young.Grants) != 4 {
		t.Errorf("of a new pool: %v, %d bars, counted since %v", young.Span, len(young.Grants), young.Counting)
	}
}

// TestChartOfDays checks the chart of days: it has the lowest and the highest value of each step and the counts of one day before, but no
// denials.
func TestChartOfDays(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := hourSeries(start, 3)
	s.StepMS = (10 * time.Minute).Milliseconds()
	for i := range s.Points {
		before := int64(10 * i)
		s.Points[i].At.Time, s.Points[i].HeldMin, s.Points[i].HeldMax = start.Add(time.Duration(i+1)*10*time.Minute), 20, 50
		s.Points[i].GrantedDayBefore, s.Points[i].FailedDayBefore = &before, &before
	}
	p := newPlot(s, timeRanges()[1], 30, 60, denials{since: start.Add(time.Hour), byMinute: map[int64]int64{minuteOf(s.Points[1].At.Time): 12}})
	if p.Span != 24*time.Hour || strings.Count(p.Band, "L") != 5 || len(p.Denied) != 0 || p.Counting != nil || p.Every != "10 min" {
		t.Errorf("%v, band %q, %d denied, a bar is %s", p.Span, p.Band, len(p.Denied), p.Every)
	}
	if p.MaxBar != 20 || p.Before == nil || p.Before.Granted != 30 || p.Before.GrantedNow != 6 || !slices.Equal(p.Values.Held, numbers{30, 30, 30}) {
		t.Errorf("up to %d, one day before %+v, held %v", p.MaxBar, p.Before, p.Values.Held)
	}
}
