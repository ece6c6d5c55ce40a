package api

import (
	"errors"
	"time"
)

// checkSpan returns an error if end is at or before begin, because then no task can start between them. It also returns an error if a time
// cannot be stored. A time that is nil is not checked.
func checkSpan(begin, end *time.Time) error {
	if err := checkYears(begin, end); err != nil {
		return invalidProblem("%v", err)
	}
	if isEmptySpan(begin, end) {
		return invalidProblem("not_after: must be later than not_before")
	}
	return nil
}

// checkYears returns an error for a time that Postgres or SQLite cannot store. nil is valid.
func checkYears(notBefore, notAfter *time.Time) error {
	if isOutsideYears(notBefore) {
		return errors.New("not_before: " + yearsMessage)
	}
	if isOutsideYears(notAfter) {
		return errors.New("not_after: " + yearsMessage)
	}
	return nil
}

const yearsMessage = "must be in the years 1 to 9999, in UTC"

// isOutsideYears reports whether Postgres or SQLite cannot store the time at. It is false for nil.
func isOutsideYears(at *time.Time) bool {
	return at != nil && (at.UTC().Year() < 1 || at.UTC().Year() > 9999)
}

// isEmptySpan reports whether end is at or before begin. It is false if one of them is nil.
func isEmptySpan(begin, end *time.Time) bool { return begin != nil && end != nil && !end.After(*begin) }

// checkPeriod returns an error if until is not after since. beginName and endName are the parameters that contain since and until, for the
// error. A zero time means no bound.
func checkPeriod(beginName string, since time.Time, endName string, until time.Time) error {
	switch {
	case isOutsideYears(&since):
		return invalidProblem("%s: %s", beginName, yearsMessage)
	case isOutsideYears(&until):
		return invalidProblem("%s: %s", endName, yearsMessage)
	case !since.IsZero() && !until.IsZero() && !since.Before(until):
		return invalidProblem("%s: must be later than %s", endName, beginName)
	}
	return nil
}
