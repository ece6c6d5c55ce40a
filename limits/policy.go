package limits

import "github.com/fleetslots/dispatcher/limits/policy"

// Policy is what an operator writes; the others are its parts.
type (
	Policy    = policy.Policy
	Window    = policy.Window
	Algorithm = policy.Algorithm
	Period    = policy.Period
)

// The algorithms and periods.
const (
	Sliding   = policy.Sliding
	Fixed     = policy.Fixed
	Calendar  = policy.Calendar
	Duplicate = policy.Duplicate

	Day   = policy.Day
	Week  = policy.Week
	Month = policy.Month
)
