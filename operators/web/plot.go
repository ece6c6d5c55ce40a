package web

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

const (
	plotWidth, plotHeight = 720, 130
	barsHeight, rowHeight = 40, 24 // of the bars of grants and reaps, and of each row below them
	pointsPerValue        = 3      // number of points of the last hour that are combined into one value for the cursor
)

// plot is the chart of a pool with its axes, and the values that the cursor shows.
type plot struct {
	chart

	Ranges []rangeLink
	Levels []axisTick // ticks for the number of held slots
	Times  []axisTick
	Values plotValues
	Acts   []actMark // newest first
	End    time.Time // time at the right edge
	Days   bool      // the chart covers days; only the chart of the last hour includes denials
}

// rangeLink is a link to the same page with another range.
type rangeLink struct {
	Name, Path string
	Current    bool
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
	return fmt.Sprintf("%s: %d of %d held", at.Format("15:04:05 UTC"), v.Held[last], v.Capacity[last])
}

// numbers is a list of numbers that a script reads.
type numbers []int

// String returns the numbers as text, with spaces between them.
func (n numbers) String() string { return strings.Trim(fmt.Sprint([]int(n)), "[]") }

// rangeLinks returns the links to the chart of a pool with each range. current is the range that is shown.
func rangeLinks(pool, current string) []rangeLink {
	var list []rangeLink
	for _, r := range []struct{ name, text string }{{"1h", "1 h"}, {"24h", "24 h"}, {"7d", "7 days"}} {
		list = append(list, rangeLink{r.text, poolPath(pool) + "?range=" + r.name, r.name == current})
	}
	return list
}

// chosenRange returns the range that the request selects: 1h, 24h or 7d. The default is 1h.
func chosenRange(r *http.Request) string {
	switch asked := r.URL.Query().Get("range"); asked {
	case "24h", "7d":
		return asked
	}
	return "1h"
}

// newHourPlot draws the chart of the last hour from points, which this replica has in memory. Denials are counted since countedSince. series
// has the counts of one day before; its steps are a minute, so they are drawn only over bars that cover a minute.
func newHourPlot(points []point, countedSince time.Time, series operators.Series) plot {
	p := plot{chart: newHourChart(points, plotWidth, plotHeight)}
	if p.Span <= maxFineBarsSpan {
		series.Points = nil
	}
	p.MaxBar = highestDayBefore(series)
	p.drawBars(points, countedSince)
	if len(points) > 0 {
		p.drawDayBefore(series, points[len(points)-1])
		p.addAxes(points[len(points)-1].time())
		p.setValues(points)
	}
	return p
}

// newDaysPlot draws the chart of the last day or week (timeRange) from a series that the API returned. The curve of a younger pool begins
// inside the range.
func newDaysPlot(series operators.Series, timeRange string) plot {
	span := 24 * time.Hour
	if timeRange == "7d" {
		span *= 7
	}
	step := time.Duration(series.StepMS) * time.Millisecond
	points := seriesPoints(series)
	p := plot{Days: true, chart: newChart(points, plotWidth, plotHeight, span)}
	p.drawBand(series.Points, points)
	p.MaxBar = highestDayBefore(series)
	p.drawSums(sumPoints(points[1:], step), points[len(points)-1], step, durationText(step))
	p.drawDayBefore(series, points[len(points)-1])
	p.addAxes(series.To.Time)
	p.setValues(points[1:])
	return p
}

// seriesPoints returns the points of a series. The first point is the number of slots that were held before the first step.
func seriesPoints(series operators.Series) []point {
	first := series.Points[0]
	points := []point{{at: series.From.UnixMilli(), held: toUint16(first.Held - int(first.Granted-first.Ended)), capacity: toUint16(first.Capacity)}}
	for _, p := range series.Points {
		points = append(points, point{
			at: p.At.UnixMilli(), held: toUint16(p.Held), capacity: toUint16(p.Capacity), grants: uint32(max(0, p.Granted)), failed: uint32(max(0, p.Failed)), //nolint:gosec // no pool grants so many in an hour
			reaps: toUint16(int(p.Lapsed)),
		})
	}
	return points
}

// highestDayBefore returns the highest number of grants in a step one day before.
func highestDayBefore(series operators.Series) (highest int) {
	for _, s := range series.Points {
		if s.GrantedDayBefore != nil {
			highest = max(highest, int(*s.GrantedDayBefore))
		}
	}
	return highest
}

// drawDayBefore draws the counts of one day before as lines over the bars, with the scale of the bars. last is the last point of the chart.
func (p *plot) drawDayBefore(series operators.Series, last point) {
	var granted, failed strings.Builder
	d, command, scale := dayBefore{}, "M", float64(barsHeight)/float64(max(p.MaxBar, 1))
	for _, s := range series.Points {
		x := p.x(last, point{at: s.At.UnixMilli()}) - p.BarWidth/2
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

// drawBand draws the area between the lowest and the highest number of held slots of each step.
func (p *plot) drawBand(steps []operators.SeriesPoint, points []point) {
	var upper, lower strings.Builder
	last := points[len(points)-1]
	for i, s := range steps {
		fmt.Fprintf(&upper, "L%.1f %.1f", p.x(last, points[i+1]), p.y(toUint16(min(s.HeldMax, p.Top))))
		low := len(steps) - 1 - i
		fmt.Fprintf(&lower, "L%.1f %.1f", p.x(last, points[low+1]), p.y(toUint16(steps[low].HeldMin)))
	}
	p.Band = "M" + upper.String()[1:] + lower.String() + "Z"
}

// addAxes adds the ticks of a chart that ends at the time end.
func (p *plot) addAxes(end time.Time) {
	for v := 0; v <= p.Top; v += levelStep(p.Top) {
		p.Levels = append(p.Levels, axisTick{Text: strconv.Itoa(v), At: 100 * p.y(toUint16(v)) / float64(p.Height)})
	}
	p.Times, p.End = timeTicks(end, p.Span), end
}

// actMark is the mark of an act of an operator in a chart.
type actMark struct {
	eventText

	X float64 // position in percent of the width
}

// addActs adds a mark for each of acts, the acts of operators on the pool.
func (p *plot) addActs(acts []operators.Event) {
	for _, act := range acts {
		ago := float64(p.End.Sub(act.At.Time)) / float64(p.Span)
		p.Acts = append(p.Acts, actMark{newEventText(act), 100 * (1 - min(max(ago, 0), 1))})
	}
}

// levelStep returns the distance of the level ticks: 1, 2 or 5 times a power of ten, with at most five ticks up to top, the highest value.
func levelStep(top int) int {
	for step := 1; ; step *= 10 {
		for _, times := range []int{1, 2, 5} {
			if top/(step*times) <= 4 {
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

// setValues stores the values that the cursor shows. For the last hour, it combines pointsPerValue points into one value.
func (p *plot) setValues(points []point) {
	v := &p.Values
	v.From = points[len(points)-1].at - p.Span.Milliseconds()
	each := 1
	if !p.Days {
		each = pointsPerValue
	}
	grants, reaps := 0, 0
	for i, one := range points {
		grants, reaps = grants+int(one.grants), reaps+int(one.reaps)
		if (len(points)-1-i)%each == 0 {
			v.addValues(one, grants, reaps)
			grants, reaps = 0, 0
		}
	}
}

// addValues adds the values of the point added. grants and reaps are the counts since the previous value.
func (v *plotValues) addValues(added point, grants, reaps int) {
	v.At = append(v.At, int((added.at-v.From)/1000))
	v.Held = append(v.Held, int(added.held))
	v.Capacity = append(v.Capacity, int(added.capacity))
	v.Granted = append(v.Granted, grants)
	v.Reaped = append(v.Reaped, reaps)
}
