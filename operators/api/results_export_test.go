package api

import "github.com/fleetslots/dispatcher/operators"

// NumbersOf summarizes the numbers. It sorts them in place.
func NumbersOf(numbers []float64) *operators.NumberValues { return summarizeNumbers(numbers) }
