package web

import (
	"fmt"
	"strings"
	"time"
)

// shortest is the least that a chart spans: a replica that was just started has
// seen little.
const shortest = 2 * time.Minute

// barWidth is that of the template.
const barWidth = 1.6

// chart is the last hour of a pool, as an SVG of Width x Height draws it.
type chart struct {
	Width, Height int
	Area, Line    string // of the slots held
	Limit         string // the capacity
	Grants, Reaps []bar
	Denied        []bar
	Top           int // value at the upper edge
	MaxBar        int
	MaxDenied     int
	Span          time.Duration // from the left edge to the right one
	Since         *time.Time    // the first point; nil: there is none yet
	Label         string        // in words
	Held          int
}

type bar struct {
	X, Y, Height float64
	Title        string
}

// chartOf draws points. The right edge is the last of them.
func chartOf(points []point, width, height int) chart {
	c := chart{Width: width, Height: height, Top: 1, Span: shortest, Label: "no history yet"}
	if len(points) == 0 {
		return c
	}
	low, high := points[0].held, points[0].held
	for _, p := range points {
		c.Top = max(c.Top, int(p.held), int(p.capacity))
		low, high = min(low, p.held), max(high, p.held)
		c.MaxBar = max(c.MaxBar, int(p.grants)+int(p.reaps))
		c.MaxDenied = max(c.MaxDenied, int(p.denied))
	}
	last := points[len(points)-1]
	since := points[0].time()
	c.Since, c.Held = &since, int(last.held)
	c.Label = fmt.Sprintf("between %d and %d slots held lately, now %d of %d", low, high, last.held, last.capacity)
	c.Span = min(time.Hour, max(shortest, last.time().Sub(since).Round(time.Minute)))
	x := func(p point) float64 { return c.x(last, p) }
	y := func(n uint16) float64 { return float64(height) * (1 - 0.92*float64(n)/float64(c.Top)) }
	var line, limit strings.Builder
	for i, p := range points {
		if i > 0 {
			fmt.Fprintf(&line, "L%.1f %.1f", x(p), y(points[i].held))
			if p.capacity != points[i-1].capacity {
				fmt.Fprintf(&limit, "L%.1f %.1f", x(p), y(points[i-1].capacity))
			}
			fmt.Fprintf(&limit, "L%.1f %.1f", x(p), y(p.capacity))
			continue
		}
		fmt.Fprintf(&line, "M%.1f %.1f", x(p), y(p.held))
		fmt.Fprintf(&limit, "M%.1f %.1f", x(p), y(p.capacity))
	}
	c.Line, c.Limit = line.String(), limit.String()
	c.Area = fmt.Sprintf("%sL%d %dL%.1f %dZ", c.Line, width, height, x(points[0]), height)
	return c
}

func (c *chart) x(last, p point) float64 {
	return float64(c.Width) * (1 - float64(last.at-p.at)/float64(c.Span.Milliseconds()))
}

// bars draws what happened between the points: grants below and reaps on top,
// and reports that were granted nothing in a row of their own.
func (c *chart) bars(points []point, height, deniedHeight int) {
	if len(points) == 0 {
		return
	}
	last := points[len(points)-1]
	scale, deniedScale := float64(height)/float64(max(c.MaxBar, 1)), float64(deniedHeight)/float64(max(c.MaxDenied, 1))
	for _, p := range points {
		x := max(c.x(last, p)-barWidth, 0)
		grants, reaps, denied := float64(p.grants)*scale, float64(p.reaps)*scale, float64(p.denied)*deniedScale
		if p.grants > 0 {
			c.Grants = append(c.Grants, bar{x, float64(height) - grants, grants, fmt.Sprintf("%d granted in 5 s", p.grants)})
		}
		if p.reaps > 0 {
			c.Reaps = append(c.Reaps, bar{x, float64(height) - grants - reaps, reaps, fmt.Sprintf("%d taken back in 5 s", p.reaps)})
		}
		if p.denied > 0 {
			c.Denied = append(c.Denied, bar{x, float64(deniedHeight) - denied, denied, fmt.Sprintf("%d refused in 5 s", p.denied)})
		}
	}
}
