package api

import "github.com/fleetslots/dispatcher/operators"

// NumbersOf sums up numbers, which it sorts.
func NumbersOf(numbers []float64) *operators.NumberValues { return numbersOf(numbers) }
