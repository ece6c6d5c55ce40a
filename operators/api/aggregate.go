package api

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/fleetslots/dispatcher/operators"
)

const (
	maxBins       = 20
	maxTextValues = 20
	maxTextChars  = 200 // characters of a text value that are kept
)

// aggregate collects the values of one output field in the results of a batch, to summarize them.
type aggregate struct {
	field   string
	numbers []float64
	texts   map[string]int64 // number of results by text; true and false count as text
	other   int64            // number of lists, objects and numbers that no float64 can hold
}

// addValue adds value, the JSON value of the field in one result.
func (a *aggregate) addValue(value json.RawMessage) {
	switch jsonType(value) {
	case "null":
	case "text":
		var text string
		_ = json.Unmarshal(value, &text) // the text was decoded before, so it is valid
		a.addText(text)
	case "boolean":
		a.addText(string(value))
	case "number":
		if n, err := strconv.ParseFloat(string(value), 64); err == nil {
			a.numbers = append(a.numbers, n)
			return
		}
		a.other++
	default:
		a.other++
	}
}

func (a *aggregate) addText(text string) {
	if a.texts == nil {
		a.texts = map[string]int64{}
	}
	a.texts[truncateText(text)]++
}

func truncateText(text string) string {
	n := 0
	for i := range text {
		if n++; n > maxTextChars {
			return text[:i]
		}
	}
	return text
}

func (a *aggregate) summarize() *operators.Aggregate {
	sum := &operators.Aggregate{Field: a.field, Other: a.other, Tasks: a.other + int64(len(a.numbers))}
	names := slices.SortedFunc(maps.Keys(a.texts), func(x, y string) int { return cmp.Or(cmp.Compare(a.texts[y], a.texts[x]), cmp.Compare(x, y)) })
	for i, name := range names {
		n := a.texts[name]
		sum.Tasks += n
		if i < maxTextValues {
			sum.Values = append(sum.Values, operators.ValueCount{Value: name, Tasks: n})
		} else {
			sum.Rest += n
		}
	}
	sum.Number = summarizeNumbers(a.numbers)
	return sum
}

// summarizeNumbers summarizes numbers and sorts them in place. If there are none, it returns nil.
func summarizeNumbers(numbers []float64) *operators.NumberValues {
	if len(numbers) == 0 {
		return nil
	}
	slices.Sort(numbers)
	mean, n := 0.0, float64(len(numbers))
	for _, x := range numbers {
		mean += x / n // divides each number first, because the sum of all numbers could overflow a float64
	}
	return &operators.NumberValues{
		Count: int64(len(numbers)), Min: numbers[0], Max: numbers[len(numbers)-1], Mean: mean,
		P5: percentile(numbers, 0.05), P50: percentile(numbers, 0.5), P95: percentile(numbers, 0.95), P99: percentile(numbers, 0.99),
		Histogram: countInBins(numbers),
	}
}

// percentile returns the percentile at share (0 to 1) of sorted numbers. Between two numbers it interpolates linearly.
func percentile(sorted []float64, share float64) float64 {
	at := share * float64(len(sorted)-1)
	i := int(at)
	low, high, part := sorted[i], sorted[min(i+1, len(sorted)-1)], at-float64(i)
	if math.IsInf(high-low, 0) {
		return low*(1-part) + high*part
	}
	return min(low+part*(high-low), high) // rounding could make it larger than high
}

// countInBins counts sorted numbers in bins whose width is 1, 2 or 5 times a power of ten. If no such bins separate the
// numbers, it returns one bin.
func countInBins(sorted []float64) []operators.Bin {
	low, high := sorted[0], sorted[len(sorted)-1]
	one := []operators.Bin{{From: low, To: high, Tasks: int64(len(sorted))}}
	step, ok := chooseBinStep(low, high)
	if !ok {
		return one
	}
	first := step.binIndex(low)
	bins := make([]operators.Bin, int(step.binIndex(high)-first)+1)
	for i := range bins {
		bins[i].From, bins[i].To = step.lowerEdge(first+float64(i)), step.lowerEdge(first+float64(i+1))
	}
	i := 0
	for _, x := range sorted {
		for i < len(bins)-1 && x >= bins[i].To {
			i++
		}
		bins[i].Tasks++
	}
	return bins
}

// binStep is the width of a bin: times * 10^power.
type binStep struct {
	times float64
	power int
}

// binIndex returns the number of the bin that contains number. It corrects the quotient by comparing number with the edges of the bin,
// because a division rounds: 0.57 / 0.01 is less than 57.
func (s binStep) binIndex(number float64) (index float64) {
	n := math.Floor(number / s.times / math.Pow10(s.power))
	switch {
	case s.lowerEdge(n) > number:
		return n - 1
	case s.lowerEdge(n+1) <= number:
		return n + 1
	}
	return n
}

// lowerEdge returns the lower edge of the bin with this index. For a negative power it divides by the positive power of ten, because a
// negative power of ten is not exact in a float64.
func (s binStep) lowerEdge(index float64) float64 {
	if s.power < 0 {
		return index * s.times / math.Pow10(-s.power)
	}
	return index * s.times * math.Pow10(s.power)
}

// chooseBinStep returns the smallest bin width with which the numbers from low to high need at most maxBins bins. ok is false
// if the numbers are too close together, too large or too small to be separated into bins.
func chooseBinStep(low, high float64) (step binStep, ok bool) {
	span := high/maxBins - low/maxBins
	if span <= 0 {
		return binStep{}, false
	}
	power := int(math.Floor(math.Log10(span)))
	if power < -290 || power > 290 || math.Max(math.Abs(low), math.Abs(high))/span > 1e13 {
		return binStep{}, false
	}
	for ; ; power++ {
		for _, times := range []float64{1, 2, 5} {
			s := binStep{times, power}
			if s.binIndex(high)-s.binIndex(low)+1 <= maxBins {
				return s, true
			}
		}
	}
}
