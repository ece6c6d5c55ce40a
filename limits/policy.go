package limits

import "github.com/fleetslots/dispatcher/limits/policy"

type (
	// Policy is one limit as an operator writes it.
	Policy = policy.Policy
	// Window is one window of a sliding policy.
	Window = policy.Window
	// Algorithm is the way in which a policy counts.
	Algorithm = policy.Algorithm
	// Period is a unit of the calendar.
	Period = policy.Period
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
