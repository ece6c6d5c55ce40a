package api

import (
	"errors"
	"time"
)

// checkSpan refuses a pair of times if to is not after from, because then nothing can start between
// them.
func checkSpan(from, to *time.Time) error {
	if err := checkYears(from, to); err != nil {
		return invalid("%v", err)
	}
	if isEmptySpan(from, to) {
		return invalid("not_after: must be later than not_before")
	}
	return nil
}

// checkYears refuses a time that Postgres or SQLite cannot store.
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

func isOutsideYears(at *time.Time) bool {
	return at != nil && (at.UTC().Year() < 1 || at.UTC().Year() > 9999)
}

// isEmptySpan reports whether to is not later than from, so that there is no time between them.
func isEmptySpan(from, to *time.Time) bool { return from != nil && to != nil && !to.After(*from) }
