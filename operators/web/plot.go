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
	barsHeight, deniedTop = 40, 24
	readEvery             = 3 // points of the last hour are read by the cursor together
)

// plot is the chart of a pool with its axes, and the values that the cursor reads.
type plot struct {
	chart

	Ranges []rangeLink
	Levels []tick // of the slots held
	Times  []tick
	Values readout
	Days   bool // of the last hour denials are known as well
}

// rangeLink leads to the same page with another range.
type rangeLink struct {
	Name, Path string
	Current    bool
}

// tick is a line across a chart, at a percentage of its width or height.
type tick struct {
	Text string
	At   float64 // out of 100
	MS   int64   // a time: since 1970
}

// readout are values that belong to the same times.
type readout struct {
	From                            int64   // ms since 1970
	At                              numbers // seconds since then
	Held, Capacity, Granted, Reaped numbers
}

// Last is the number of the last value, from 0.
func (v readout) Last() int { return len(v.At) - 1 }

// Said is the last value in words.
func (v readout) Said() string {
	last := v.Last()
	at := time.UnixMilli(v.From).Add(time.Duration(v.At[last]) * time.Second).UTC()
	return fmt.Sprintf("%s: %d of %d held", at.Format("15:04:05 UTC"), v.Held[last], v.Capacity[last])
}

// numbers are written one after another, for a script.
type numbers []int

// String has spaces between them.
func (n numbers) String() string { return strings.Trim(fmt.Sprint([]int(n)), "[]") }

func rangesOf(pool, current string) []rangeLink {
	var list []rangeLink
	for _, r := range []struct{ name, text string }{{"1h", "1 h"}, {"24h", "24 h"}, {"7d", "7 days"}} {
		list = append(list, rangeLink{r.text, poolPath(pool) + "?range=" + r.name, r.name == current})
	}
	return list
}

// rangeOf is the range that a page is asked for.
func rangeOf(r *http.Request) string {
	switch asked := r.URL.Query().Get("range"); asked {
	case "24h", "7d":
		return asked
	}
	return "1h"
}

// plotOfHour draws the last hour, as this replica follows the log.
func plotOfHour(points []point, counting time.Time) plot {
	p := plot{chart: chartOf(points, plotWidth, plotHeight)}
	p.bars(points, counting)
	if len(points) > 0 {
		p.axes(points[len(points)-1].time())
		p.read(points)
	}
	return p
}

// plotOfDays draws a series of the ledger over all of its range: a pool that is younger
// begins within.
func plotOfDays(s operators.Series, asked string) plot {
	span := 24 * time.Hour
	if asked == "7d" {
		span *= 7
	}
	step := time.Duration(s.StepMS) * time.Millisecond
	points := pointsOf(s)
	p := plot{Days: true, chart: chartWithin(points, plotWidth, plotHeight, span)}
	p.band(s.Points, points)
	p.barsOf(summed(points[1:], step), points[len(points)-1], step, brief(step))
	p.axes(s.To.Time)
	p.read(points[1:])
	return p
}

// pointsOf begins with what was held before the first step.
func pointsOf(s operators.Series) []point {
	first := s.Points[0]
	points := []point{{at: s.From.UnixMilli(), held: small(first.Held - int(first.Granted-first.Ended)), capacity: small(first.Capacity)}}
	for _, p := range s.Points {
		points = append(points, point{
			at: p.At.UnixMilli(), held: small(p.Held), capacity: small(p.Capacity), grants: uint32(max(0, p.Granted)), //nolint:gosec // no pool grants so many in an hour
			reaps: small(int(p.Lapsed)),
		})
	}
	return points
}

// band is between the least and the most of each step.
func (p *plot) band(steps []operators.SeriesPoint, points []point) {
	var upper, lower strings.Builder
	last := points[len(points)-1]
	for i, s := range steps {
		fmt.Fprintf(&upper, "L%.1f %.1f", p.x(last, points[i+1]), p.y(small(min(s.High, p.Top))))
		low := len(steps) - 1 - i
		fmt.Fprintf(&lower, "L%.1f %.1f", p.x(last, points[low+1]), p.y(small(steps[low].Low)))
	}
	p.Band = "M" + upper.String()[1:] + lower.String() + "Z"
}

// axes are the ticks of a chart that ends at this time.
func (p *plot) axes(end time.Time) {
	for v := 0; v <= p.Top; v += levelStep(p.Top) {
		p.Levels = append(p.Levels, tick{Text: strconv.Itoa(v), At: 100 * p.y(small(v)) / float64(p.Height)})
	}
	p.Times = timeTicks(end, p.Span)
}

// levelStep is 1, 2 or 5 times a power of ten, at most five of them up to the top.
func levelStep(top int) int {
	for step := 1; ; step *= 10 {
		for _, times := range []int{1, 2, 5} {
			if top/(step*times) <= 4 {
				return step * times
			}
		}
	}
}

// timeTicks are at full times of UTC, at most about six.
func timeTicks(end time.Time, span time.Duration) (ticks []tick) {
	step := 24 * time.Hour
	for _, each := range []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, time.Hour / 2, time.Hour, 2 * time.Hour, 4 * time.Hour, 12 * time.Hour} {
		if span/each <= 6 {
			step = each
			break
		}
	}
	form := "15:04"
	switch {
	case step < time.Minute:
		form = "15:04:05"
	case step == 24*time.Hour:
		form = "Jan 2"
	}
	for at := end.UTC().Truncate(step); !at.Before(end.Add(-span)); at = at.Add(-step) {
		if percent := 100 * (1 - float64(end.Sub(at))/float64(span)); percent > 3 && percent < 97 {
			ticks = append(ticks, tick{at.Format(form), percent, at.UnixMilli()})
		}
	}
	return ticks
}

// read notes what the cursor shows: of many points several together.
func (p *plot) read(points []point) {
	v := &p.Values
	v.From = points[len(points)-1].at - p.Span.Milliseconds()
	each := 1
	if !p.Days {
		each = readEvery
	}
	grants, reaps := 0, 0
	for i, one := range points {
		grants, reaps = grants+int(one.grants), reaps+int(one.reaps)
		if (len(points)-1-i)%each == 0 {
			v.add(one, grants, reaps)
			grants, reaps = 0, 0
		}
	}
}

func (v *readout) add(p point, grants, reaps int) {
	v.At = append(v.At, int((p.at-v.From)/1000))
	v.Held = append(v.Held, int(p.held))
	v.Capacity = append(v.Capacity, int(p.capacity))
	v.Granted = append(v.Granted, grants)
	v.Reaped = append(v.Reaped, reaps)
}
