package web

import (
	"fmt"
	"strings"
	"time"
)

// minChartSpan is the shortest time that a chart spans. A new pool has little history.
const minChartSpan = 2 * time.Minute

// chart shows the held slots and the capacity of a pool over time, and bars of counts. It is drawn as an SVG of Width x Height. It does not
// show offered slots, because its points do not count them.
type chart struct {
	curve
	countBars

	Width, Height int
	Span          time.Duration // time from the left edge to the right edge
	Label         string        // description of the chart in words
}

// curve is the number of held slots over time.
type curve struct {
	Area, Line string
	Band       string // area between the lowest and the highest value of each step; empty if each point has only one value
	Limit      string // line of the capacity
	Top        int    // value at the upper edge
}

// countBars are the bars of event counts below the curve of held slots: grants at the bottom, reaps on top
// of them, and failed attempts and denied reports each in a row of their own.
type countBars struct {
	Grants, Reaps []bar
	Failed        []bar // as high as the row if as many attempts failed as MaxBar
	Denied        []bar
	Before        *dayBefore // nil if the counts of one day before are unknown
	BarWidth      float64
	Every         string     // the time that one bar covers, in words
	MaxBar        int        // largest sum of grants and reaps in one bar
	MaxDenied     int        // largest number of denied reports in one bar
	Counting      *time.Time // time since which denials were counted; nil if they were counted over the whole chart
}

// dayBefore compares the counts of a chart with the same time one day before.
type dayBefore struct {
	GrantedLine, FailedLine string // lines over the bars: the counts of one day before
	Granted, Failed         int64
	GrantedNow, FailedNow   int64 // counts of the chart at the times that are compared
}

// bar is one bar of a chart, in units of the drawing.
type bar struct {
	X, Y, Height float64
	Title        string
}

// newHourChart draws the points of the last hour in a chart of width x height. The right edge is the time of the last point.
func newHourChart(points []point, width, height int) chart {
	span := minChartSpan
	if n := len(points); n > 0 {
		span = min(time.Hour, max(minChartSpan, points[n-1].time().Sub(points[0].time()).Round(time.Minute)))
	}
	return newChart(points, width, height, span)
}

// newChart draws points over the given span in a chart of width x height. The right edge is the time of the last point.
func newChart(points []point, width, height int, span time.Duration) chart {
	c := chart{Width: width, Height: height, Span: span, Label: "no history yet"}
	if len(points) == 0 {
		return c
	}
	c.Top = 1
	low, high := points[0].held, points[0].held
	for _, p := range points {
		c.Top = max(c.Top, int(p.held), int(p.capacity))
		low, high = min(low, p.held), max(high, p.held)
	}
	last := points[len(points)-1]
	c.Label = fmt.Sprintf("between %d and %d slots held recently, now %d of %d", low, high, last.held, last.capacity)
	c.draw(points)
	return c
}

// draw makes the SVG paths of the chart. Of many points at about the same x position, it draws only
// the lowest and the highest. The line of the capacity has points only where the capacity changes.
func (c *chart) draw(points []point) {
	last := points[len(points)-1]
	y := c.y
	var line, limit strings.Builder
	fmt.Fprintf(&limit, "M%.1f %.1f", c.x(last, points[0]), y(points[0].capacity))
	for i, p := range points {
		if i > 0 && p.capacity != points[i-1].capacity {
			fmt.Fprintf(&limit, "H%.1fV%.1f", c.x(last, p), y(p.capacity))
		}
	}
	fmt.Fprintf(&limit, "H%d", c.Width)
	command := "M"
	for _, p := range thinPoints(points, c.Width/2) {
		fmt.Fprintf(&line, "%s%.1f %.1f", command, c.x(last, p), y(p.held))
		command = "L"
	}
	c.Line, c.Limit = line.String(), limit.String()
	c.Area = fmt.Sprintf("%sL%d %dL%.1f %dZ", c.Line, c.Width, c.Height, c.x(last, points[0]), c.Height)
}

// thinPoints reduces the points to about targetCount points. It keeps the first and the last point,
// and the lowest and the highest point of each section between them, in their order.
func thinPoints(points []point, targetCount int) []point {
	each := 2 * len(points) / max(targetCount, 1)
	if each <= 2 {
		return points
	}
	kept := []point{points[0]}
	for begin := 1; begin < len(points)-1; begin += each {
		low, high := begin, begin
		for i := begin; i < min(begin+each, len(points)-1); i++ {
			if points[i].held < points[low].held {
				low = i
			}
			if points[i].held > points[high].held {
				high = i
			}
		}
		kept = append(kept, points[min(low, high)])
		if low != high {
			kept = append(kept, points[max(low, high)])
		}
	}
	return append(kept, points[len(points)-1])
}

// y returns the y coordinate for this number of held slots. It leaves some space above the highest value.
func (c *chart) y(slots uint16) float64 {
	return float64(c.Height) * (1 - 0.92*float64(slots)/float64(c.Top))
}

// x returns the x coordinate of the point drawn. The point last is the last one of the chart, at the right edge.
func (c *chart) x(last, drawn point) float64 {
	return float64(c.Width) * (1 - float64(last.at-drawn.at)/float64(c.Span.Milliseconds()))
}

// drawBars draws the counts of points. countedSince is the time since which denials are counted. A bar covers the time pointEvery, or a
// minute if the chart spans more than maxFineBarsSpan.
func (c *chart) drawBars(points []point, countedSince time.Time) {
	if len(points) == 0 {
		return
	}
	every := pointEvery
	c.Every = "5 s"
	if c.Span > maxFineBarsSpan {
		every, c.Every = time.Minute, "a minute"
	}
	if countedSince.Sub(points[0].time()) > time.Minute {
		c.Counting = &countedSince
	}
	c.drawSums(sumPoints(points, every), points[len(points)-1], every, c.Every)
}

// drawSums draws a bar for each of the sums. A bar covers the time barSpan, which is spanText in words. last is the last point of the
// chart. The right edge of a bar is at the time of the sum's last point.
func (c *chart) drawSums(sums []intervalCounts, last point, barSpan time.Duration, spanText string) {
	c.Every = spanText
	c.BarWidth = max(0.8*float64(c.Width)*float64(barSpan)/float64(c.Span), 1.6)
	for _, s := range sums {
		c.MaxBar = max(c.MaxBar, s.Grants+s.Reaps)
		c.MaxDenied = max(c.MaxDenied, s.Denied)
	}
	scale, deniedScale := float64(barsHeight)/float64(max(c.MaxBar, 1)), float64(rowHeight)/float64(max(c.MaxDenied, 1))
	for _, s := range sums {
		x := max(c.x(last, s.point)-c.BarWidth, 0)
		grants, reaps, denied := float64(s.Grants)*scale, float64(s.Reaps)*scale, float64(s.Denied)*deniedScale
		if s.Grants > 0 {
			c.Grants = append(c.Grants, bar{x, barsHeight - grants, grants, fmt.Sprintf("%d granted in %s", s.Grants, c.Every)})
		}
		if s.Reaps > 0 {
			c.Reaps = append(c.Reaps, bar{x, barsHeight - grants - reaps, reaps, fmt.Sprintf("%d taken back in %s", s.Reaps, c.Every)})
		}
		if failed := min(float64(s.Failed)*scale*rowHeight/barsHeight, rowHeight); s.Failed > 0 {
			c.Failed = append(c.Failed, bar{x, rowHeight - failed, failed, fmt.Sprintf("%d failed in %s", s.Failed, c.Every)})
		}
		if s.Denied > 0 {
			c.Denied = append(c.Denied, bar{x, rowHeight - denied, denied, fmt.Sprintf("%d refused in %s", s.Denied, c.Every)})
		}
	}
}

// maxFineBarsSpan is the longest span of a chart in which each bar covers the time pointEvery. In a
// longer chart, a bar covers a minute.
const maxFineBarsSpan = 10 * time.Minute

// intervalCounts holds the counts of one bar, which covers the points after the previous bar.
type intervalCounts struct {
	poolCounts

	point point // last point that the bar covers
}

// sumPoints adds up the counts of the points in each interval of length every. Intervals begin at full multiples of every, so the bar of a
// past interval does not change. If every is pointEvery, each point has its own sum.
func sumPoints(points []point, every time.Duration) []intervalCounts {
	var sums []intervalCounts
	span := int64(-1)
	for _, p := range points {
		if at := (p.at - 1) / every.Milliseconds(); at != span || every == pointEvery {
			sums, span = append(sums, intervalCounts{}), at
		}
		s := &sums[len(sums)-1]
		s.point = p
		s.Grants += int(p.grants)
		s.Reaps += int(p.reaps)
		s.Failed += int(p.failed)
		s.Denied += int(p.denied)
	}
	return sums
}
