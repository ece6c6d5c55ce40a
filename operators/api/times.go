package api

import (
	"errors"
	"time"
)

// checkStartPeriod returns an error if notAfter is at or before notBefore, because then no task can start between them. It also returns an
// error if a time cannot be stored. A time that is nil is not checked.
func checkStartPeriod(notBefore, notAfter *time.Time) error {
	if err := checkStorableTimes(notBefore, notAfter); err != nil {
		return invalidProblem("%v", err)
	}
	if isEmptySpan(notBefore, notAfter) {
		return invalidProblem("not_after: must be later than not_before")
	}
	return nil
}

// checkStorableTimes returns an error for a time that Postgres or SQLite cannot store. nil is valid.
func checkStorableTimes(notBefore, notAfter *time.Time) error {
	if isUnstorableTime(notBefore) {
		return errors.New("not_before: " + yearsMessage)
	}
	if isUnstorableTime(notAfter) {
		return errors.New("not_after: " + yearsMessage)
	}
	return nil
}

const yearsMessage = "must be in the years 1 to 9999, in UTC"

// isUnstorableTime reports whether Postgres or SQLite cannot store a time. It returns false for nil.
func isUnstorableTime(at *time.Time) bool {
	return at != nil && (at.UTC().Year() < 1 || at.UTC().Year() > 9999)
}

// isEmptySpan reports whether end is at or before begin. It is false if one of them is nil.
func isEmptySpan(begin, end *time.Time) bool { return begin != nil && end != nil && !end.After(*begin) }

// checkPeriod returns an error if `until` is not after `since`. sinceName and untilName are the names of these parameters, for the error. A
// zero time means no bound.
func checkPeriod(sinceName string, since time.Time, untilName string, until time.Time) error {
	switch {
	case isUnstorableTime(&since):
		return invalidProblem("%s: %s", sinceName, yearsMessage)
	case isUnstorableTime(&until):
		return invalidProblem("%s: %s", untilName, yearsMessage)
	case !since.IsZero() && !until.IsZero() && !since.Before(until):
		return invalidProblem("%s: must be later than %s", untilName, sinceName)
	}
	return nil
}
