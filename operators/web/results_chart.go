package web

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/operators"
)

const (
	progressWidth, progressHeight = 800, 160
	rateHeight                    = 40
	histogramHeight               = 90
)

// progressChart is an SVG of the progress of a batch so far, and of its expected progress.
type progressChart struct {
	Width, Height int
	Area, Line    string // curve of the number of ended tasks, and the area below it
	Failed        string // curve of the number of failed tasks
	Expected      string // line from now to the expected end; empty if the end is unknown
	Limit         string // line at the total number of tasks
	From, To      time.Time
	Now           float64 // x position of the current time
	Label         string
	Pace          []rateBar // bars of the tasks that ended per minute
	PaceMax       string    // the highest of these rates
	PaceHeight    int       // height of the drawing of the bars
	Ended, Total  int64
	ExpectedToEnd *operators.Time
}

// rateBar is the bar of one interval. Its height is the number of tasks that ended per minute.
type rateBar struct {
	X, Y, Width, Height float64
	Title               string
}

// newProgressChart draws the progress of a batch with total tasks. steps is its progress so far, oldest first. The chart ends at eta, the
// expected end, or, if eta is nil, at the last step.
func newProgressChart(steps []operators.BatchProgress, total int64, eta *operators.Time) progressChart {
	c := progressChart{Width: progressWidth, Height: progressHeight, PaceHeight: rateHeight, Total: total, ExpectedToEnd: eta}
	if len(steps) < 2 || total == 0 {
		return c
	}
	now := steps[len(steps)-1]
	c.From, c.To, c.Ended = steps[0].At.Time, now.At.Time, now.Ended
	if eta != nil && eta.After(c.To) {
		c.To = eta.Time
	}
	span := max(c.To.Sub(c.From), time.Second)
	x := func(at time.Time) float64 { return progressWidth * float64(at.Sub(c.From)) / float64(span) }
	y := func(n int64) float64 { return progressHeight * (1 - 0.92*float64(n)/float64(total)) }
	line, failed := &strings.Builder{}, &strings.Builder{}
	command := "M"
	for _, step := range steps {
		fmt.Fprintf(line, "%s%.1f %.1f", command, x(step.At.Time), y(step.Ended))
		fmt.Fprintf(failed, "%s%.1f %.1f", command, x(step.At.Time), y(step.Failed))
		command = "L"
	}
	c.Line, c.Now = line.String(), x(now.At.Time)
	if now.Failed > 0 {
		c.Failed = failed.String()
	}
	c.Area = fmt.Sprintf("%sL%.1f %dL0 %dZ", c.Line, c.Now, progressHeight, progressHeight)
	c.Limit = fmt.Sprintf("M0 %.1fH%d", y(total), progressWidth)
	c.Label = fmt.Sprintf("%d of %d tasks have ended, %d of them without success", now.Ended, total, now.Failed)
	if eta != nil && c.To.Equal(eta.Time) {
		c.Expected = fmt.Sprintf("M%.1f %.1fL%d %.1f", c.Now, y(now.Ended), progressWidth, y(total))
		c.Label += "; the last is expected to end at " + decision.FormatTime(eta.Time)
	}
	c.drawRates(steps, x)
	return c
}

// drawRates draws the bars of the rates between steps. xAtTime returns the x coordinate of a time.
func (c *progressChart) drawRates(steps []operators.BatchProgress, xAtTime func(time.Time) float64) {
	maxRate := 0.0
	for _, step := range steps {
		maxRate = max(maxRate, step.RatePerMinute)
	}
	if maxRate == 0 {
		return
	}
	c.PaceMax = roundedText(maxRate)
	for i, step := range steps[1:] {
		if step.RatePerMinute <= 0 {
			continue
		}
		from, high := xAtTime(steps[i].At.Time), rateHeight*step.RatePerMinute/maxRate
		c.Pace = append(c.Pace, rateBar{
			X: from, Y: rateHeight - high, Width: max(xAtTime(step.At.Time)-from, 0.5), Height: high,
			Title: fmt.Sprintf("%s per minute from %s to %s", roundedText(step.RatePerMinute), decision.FormatTime(steps[i].At.Time), decision.FormatTime(step.At.Time)),
		})
	}
}

// roundedText returns number as text with four significant digits.
func roundedText(number float64) string {
	text := strconv.FormatFloat(number, 'g', 4, 64)
	if strings.Contains(text, "e") && number > -1e9 && number < 1e9 {
		return strconv.FormatFloat(number, 'f', -1, 64)
	}
	return text
}

// histogram is an SVG of the distribution of the numbers in a field.
type histogram struct {
	operators.NumberValues

	Width, Height int
	BarWidth      float64
	Bars          []bar
	From, To      string
	Label         string
}

// newHistogram draws the distribution of numbers, which must have at least one bin.
func newHistogram(numbers operators.NumberValues) *histogram {
	h := &histogram{NumberValues: numbers, Width: progressWidth, Height: histogramHeight}
	maxTasks := int64(1)
	for _, bin := range numbers.Histogram {
		maxTasks = max(maxTasks, bin.Tasks)
	}
	wide := progressWidth / float64(len(numbers.Histogram))
	h.BarWidth = wide * 0.92
	for i, bin := range numbers.Histogram {
		high := histogramHeight * float64(bin.Tasks) / float64(maxTasks)
		h.Bars = append(h.Bars, bar{
			X: float64(i)*wide + wide*0.04, Y: histogramHeight - high, Height: high,
			Title: fmt.Sprintf("%d from %s to %s", bin.Tasks, roundedText(bin.From), roundedText(bin.To)),
		})
	}
	h.From, h.To = roundedText(numbers.Histogram[0].From), roundedText(numbers.Histogram[len(numbers.Histogram)-1].To)
	h.Label = fmt.Sprintf("%d numbers from %s to %s, median %s", numbers.Count, roundedText(numbers.Min), roundedText(numbers.Max), roundedText(numbers.P50))
	return h
}
