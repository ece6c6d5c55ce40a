package web

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/operators"
)

const (
	plotWidth, plotHeight = 720, 130
	barsHeight, rowHeight = 40, 24 // heights of the bars of grants and reaps, and of each row below them
	lastHour              = "1h"   // the range of the API for the last hour
)

// plot is the chart of a pool with its bars and axes, and the values that the cursor shows.
type plot struct {
	chart
	countBars

	Band   string // area between the lowest and the highest value of each step; empty if a step has only one value
	Ranges []choiceLink
	Levels []axisTick // ticks for the number of held slots
	Times  []axisTick
	Values plotValues
	Acts   []actMark // newest first
	Days   bool      // the chart covers days; only the chart of the last hour includes denials
}

// countBars are the bars of event counts below the curve of held slots: grants at the bottom, reaps on top
// of them, and failed attempts and denied reports each in a row of their own.
type countBars struct {
	Grants, Reaps []bar
	Failed        []bar // a bar has the full height of its row if MaxBar or more attempts failed
	Denied        []bar
	Before        *dayBefore // nil if the counts of one day before are unknown
	BarWidth      float64
	Every         string     // the time that one bar covers, in words
	MaxBar        int64      // largest sum of grants and reaps in one bar
	MaxDenied     int64      // largest number of denied reports in one bar
	Counting      *time.Time // time since which denials were counted; nil if they were counted over the whole chart
}

// bar is one bar of a chart, in units of the drawing.
type bar struct {
	X, Y, Height float64
	Title        string
}

// dayBefore compares the counts of a chart with the counts of one day before.
type dayBefore struct {
	GrantedLine, FailedLine string // lines over the bars: the counts of one day before
	Granted, Failed         int64
	GrantedNow, FailedNow   int64 // counts of the steps whose count of one day before is known
}

// axisTick is a line across a chart. Its position is a percentage of the chart's width or height.
type axisTick struct {
	Text string
	At   float64 // position in percent
	MS   int64   // ms since 1970, if the tick marks a time
}

// plotValues holds series of values for the same times.
type plotValues struct {
	From                            int64   // ms since 1970
	At                              numbers // seconds since From
	Held, Capacity, Granted, Reaped numbers
}

// Last returns the index of the last value in the plot.
func (v plotValues) Last() int { return len(v.At) - 1 }

// LastText returns the last value of the plot in words.
func (v plotValues) LastText() string {
	last := v.Last()
	at := time.UnixMilli(v.From).Add(time.Duration(v.At[last]) * time.Second).UTC()
	return fmt.Sprintf("%s: %d of %d held", decision.FormatTime(at), v.Held[last], v.Capacity[last])
}

// numbers is a list of numbers that a script reads.
type numbers []int

// String returns the numbers as text, with spaces between them.
func (n numbers) String() string { return strings.Trim(fmt.Sprint([]int(n)), "[]") }

type timeRange struct {
	name, text string
	length     time.Duration
}

// timeRanges returns the ranges that a visitor can choose. The first one is the default.
func timeRanges() []timeRange {
	return []timeRange{{lastHour, "1 h", time.Hour}, {"24h", "24 h", 24 * time.Hour}, {"7d", "7 days", 7 * 24 * time.Hour}}
}

func chosenRange(r *http.Request) timeRange {
	ranges := timeRanges()
	return ranges[max(0, slices.IndexFunc(ranges, func(one timeRange) bool { return one.name == r.URL.Query().Get("range") }))]
}

// rangeChoices returns a link for each range. queryOfRange returns the query of the page for the range name. current is the range that is
// shown.
func rangeChoices(current timeRange, queryOfRange func(name string) string) []choiceLink {
	var list []choiceLink
	for _, one := range timeRanges() {
		list = append(list, choiceLink{one.text, queryOfRange(one.name), one == current})
	}
	return list
}

// newPlot draws series, the history of a pool in span. held and capacity are the current numbers of slots, which can be newer than series.
// denialCounts has the denials that this replica knows. A chart of days omits denials.
func newPlot(series operators.Series, span timeRange, held, capacity int, denialCounts denials) plot {
	p := plot{Days: span.name != lastHour, chart: newChart(series, span, held, capacity, plotWidth, plotHeight)}
	if p.Days {
		p.Band, denialCounts = p.bandPath(series.Points), denials{}
	} else if denialCounts.since.Sub(series.From.Time) > time.Minute {
		p.Counting = &denialCounts.since
	}
	step := time.Duration(series.StepMS) * time.Millisecond
	p.BarWidth = max(0.8*float64(p.Width)*float64(step)/float64(p.Span), 1.6)
	if p.Every = durationText(step); step == time.Minute {
		p.Every = "a minute"
	}
	p.drawBars(series.Points, denialCounts)
	p.drawCountsOfDayBefore(series.Points)
	p.addAxes()
	p.setCursorValues(series.Points)
	return p
}

// drawBars draws the counts of each step as bars. The right edge of a bar is at the end of its step.
func (p *plot) drawBars(steps []operators.SeriesPoint, denied denials) {
	for _, s := range steps {
		p.MaxBar = max(p.MaxBar, s.Granted+s.Lapsed)
		if s.GrantedDayBefore != nil {
			p.MaxBar = max(p.MaxBar, *s.GrantedDayBefore)
		}
		p.MaxDenied = max(p.MaxDenied, denied.byMinute[minuteOf(s.At.Time)])
	}
	scale, deniedScale := float64(barsHeight)/float64(max(p.MaxBar, 1)), float64(rowHeight)/float64(max(p.MaxDenied, 1))
	for _, s := range steps {
		x := max(p.xAtTime(s.At.Time)-p.BarWidth, 0)
		add := func(bars *[]bar, bottom, height float64, count int64, what string) {
			if count > 0 {
				*bars = append(*bars, bar{x, bottom - height, height, fmt.Sprintf("%d %s in %s", count, what, p.Every)})
			}
		}
		grants, refused := float64(s.Granted)*scale, denied.byMinute[minuteOf(s.At.Time)]
		add(&p.Grants, barsHeight, grants, s.Granted, "granted")
		add(&p.Reaps, barsHeight-grants, float64(s.Lapsed)*scale, s.Lapsed, "taken back")
		add(&p.Failed, rowHeight, min(float64(s.Failed)*scale*rowHeight/barsHeight, rowHeight), s.Failed, "failed")
		add(&p.Denied, rowHeight, float64(refused)*deniedScale, refused, "refused")
	}
}

// drawCountsOfDayBefore draws the counts of one day before as lines over the bars, with the scale of the bars.
func (p *plot) drawCountsOfDayBefore(steps []operators.SeriesPoint) {
	var granted, failed strings.Builder
	d, command, scale := dayBefore{}, "M", float64(barsHeight)/float64(max(p.MaxBar, 1))
	for _, s := range steps {
		x := p.xAtTime(s.At.Time) - p.BarWidth/2
		if s.GrantedDayBefore == nil || x < 0 {
			continue
		}
		fmt.Fprintf(&granted, "%s%.0f %.1f", command, x, barsHeight-scale*float64(*s.GrantedDayBefore))
		fmt.Fprintf(&failed, "%s%.0f %.1f", command, x, max(0, rowHeight-scale*rowHeight/barsHeight*float64(*s.FailedDayBefore)))
		d.Granted, d.Failed = d.Granted+*s.GrantedDayBefore, d.Failed+*s.FailedDayBefore
		d.GrantedNow, d.FailedNow, command = d.GrantedNow+s.Granted, d.FailedNow+s.Failed, "L"
	}
	if command == "L" {
		d.GrantedLine, d.FailedLine = granted.String(), failed.String()
		p.Before = &d
	}
}

func (p *plot) addAxes() {
	for v := 0; v <= p.Top; v += levelTickDistance(p.Top) {
		p.Levels = append(p.Levels, axisTick{Text: strconv.Itoa(v), At: 100 * p.yForSlots(v) / float64(p.Height)})
	}
	p.Times = timeTicks(p.End, p.Span)
}

// actMark is the mark of an act of an operator in a chart.
type actMark struct {
	eventText

	X float64 // position in percent of the width
}

// markOperatorActs adds a mark for each of acts, the acts of operators on the pool.
func (p *plot) markOperatorActs(acts []operators.Event) {
	for _, act := range acts {
		ago := float64(p.End.Sub(act.At.Time)) / float64(p.Span)
		p.Acts = append(p.Acts, actMark{newEventText(act), 100 * (1 - min(max(ago, 0), 1))})
	}
}

// levelTickDistance returns the distance of the level ticks: 1, 2 or 5 times a power of ten, with at most five ticks up to maxLevel, the highest
// value.
func levelTickDistance(maxLevel int) int {
	for step := 1; ; step *= 10 {
		for _, times := range []int{1, 2, 5} {
			if maxLevel/(step*times) <= 4 {
				return step * times
			}
		}
	}
}

// timeTicks returns at most about six ticks at round times in UTC, for a chart of the length span that ends at end.
func timeTicks(end time.Time, span time.Duration) (ticks []axisTick) {
	step := 24 * time.Hour
	for _, each := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, time.Hour / 2, time.Hour, 2 * time.Hour, 4 * time.Hour, 12 * time.Hour} {
		if span/each <= 6 {
			step = each
			break
		}
	}
	layout := "15:04"
	switch {
	case step < time.Minute:
		layout = "15:04:05"
	case step == 24*time.Hour:
		layout = "Jan 2"
	}
	for at := end.UTC().Truncate(step); !at.Before(end.Add(-span)); at = at.Add(-step) {
		if percent := 100 * (1 - float64(end.Sub(at))/float64(span)); percent > 3 && percent < 97 {
			ticks = append(ticks, axisTick{at.Format(layout), percent, at.UnixMilli()})
		}
	}
	return ticks
}

// setCursorValues stores the values that the cursor shows: one for each of steps.
func (p *plot) setCursorValues(steps []operators.SeriesPoint) {
	v, from := &p.Values, p.End.Add(-p.Span)
	v.From = from.UnixMilli()
	for i, use := range p.uses[1:] {
		v.At = append(v.At, int(use.at.Sub(from)/time.Second))
		v.Held, v.Capacity = append(v.Held, use.held), append(v.Capacity, use.capacity)
		v.Granted, v.Reaped = append(v.Granted, int(steps[i].Granted)), append(v.Reaped, int(steps[i].Lapsed))
	}
}
