package web

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

// minChartSpan is the shortest time that a chart of the last hour spans, even if the pool is newer.
const minChartSpan = 10 * time.Minute

// slotUse is the number of held slots of a pool and its capacity at one time. It does not include offered slots.
type slotUse struct {
	at             time.Time
	held, capacity int
}

// chart is an SVG of Width x Height: the held slots and the capacity of a pool over time.
type chart struct {
	Width, Height int
	Span          time.Duration // time from the left edge to the right edge
	End           time.Time     // time at the right edge
	Top           int           // value at the upper edge of the curve
	Area, Line    string        // curve of the held slots, and the area below it
	Limit         string        // line of the capacity
	Label         string        // description of the chart in words

	uses []slotUse // oldest first; the first one is the state before the first step of the series
}

// newChart draws series, the history of a pool in span, in a chart of width x height. held and capacity are the current numbers of slots,
// which can be newer than series.
func newChart(series operators.Series, span timeRange, held, capacity, width, height int) chart {
	uses := slotUses(series, held, capacity)
	first, last := uses[0], uses[len(uses)-1]
	c := chart{Width: width, Height: height, Span: span.length, End: last.at, Top: 1, uses: uses}
	if span.name == lastHour { // in a longer range, the curve of a new pool begins right of the left edge
		c.Span = min(c.Span, max(minChartSpan, last.at.Sub(first.at).Round(time.Minute)))
	}
	low, high := first.held, first.held
	for _, u := range uses {
		c.Top = max(c.Top, u.held, u.capacity)
		low, high = min(low, u.held), max(high, u.held)
	}
	c.Label = fmt.Sprintf("between %d and %d slots held recently, now %d of %d", low, high, last.held, last.capacity)
	c.drawPaths()
	return c
}

// slotUses returns the state of a pool before the first step of series and at the end of each step. The last state has the current numbers
// held and capacity.
func slotUses(series operators.Series, held, capacity int) []slotUse {
	first := series.Points[0]
	uses := []slotUse{{series.From.Time, max(0, first.Held-int(first.Granted-first.Ended)), first.Capacity}}
	for _, p := range series.Points {
		uses = append(uses, slotUse{p.At.Time, p.Held, p.Capacity})
	}
	last := &uses[len(uses)-1]
	last.held, last.capacity = held, capacity
	return uses
}

// drawPaths makes the SVG paths of the chart. The line of the capacity has points only where the capacity changes.
func (c *chart) drawPaths() {
	var line, limit strings.Builder
	fmt.Fprintf(&limit, "M%.1f %.1f", c.xAtTime(c.uses[0].at), c.yForSlots(c.uses[0].capacity))
	command := "M"
	for i, u := range c.uses {
		if i > 0 && u.capacity != c.uses[i-1].capacity {
			fmt.Fprintf(&limit, "H%.1fV%.1f", c.xAtTime(u.at), c.yForSlots(u.capacity))
		}
		fmt.Fprintf(&line, "%s%.1f %.1f", command, c.xAtTime(u.at), c.yForSlots(u.held))
		command = "L"
	}
	fmt.Fprintf(&limit, "H%d", c.Width)
	c.Line, c.Limit = line.String(), limit.String()
	c.Area = fmt.Sprintf("%sL%d %dL%.1f %dZ", c.Line, c.Width, c.Height, c.xAtTime(c.uses[0].at), c.Height)
}

// bandPath returns the area between the lowest and the highest number of held slots of each step.
func (c *chart) bandPath(steps []operators.SeriesPoint) (svgPath string) {
	var upper, lower strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&upper, "L%.1f %.1f", c.xAtTime(s.At.Time), c.yForSlots(min(s.HeldMax, c.Top)))
	}
	for _, s := range slices.Backward(steps) {
		fmt.Fprintf(&lower, "L%.1f %.1f", c.xAtTime(s.At.Time), c.yForSlots(s.HeldMin))
	}
	return "M" + upper.String()[1:] + lower.String() + "Z"
}

// yForSlots returns the y coordinate for this number of held slots. It leaves some space above the highest value.
func (c *chart) yForSlots(slots int) float64 {
	return float64(c.Height) * (1 - 0.92*float64(slots)/float64(c.Top))
}

func (c *chart) xAtTime(at time.Time) float64 {
	return float64(c.Width) * (1 - float64(c.End.Sub(at))/float64(c.Span))
}
