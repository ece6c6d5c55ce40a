package api

import (
	"errors"
	"time"
)

// checkSpan refuses times that nothing can start between.
func checkSpan(from, to *time.Time) error {
	if err := checkYears(from, to); err != nil {
		return invalid("%v", err)
	}
	if never(from, to) {
		return invalid("not_after: must be later than not_before")
	}
	return nil
}

// checkYears refuses a time that neither ledger can keep.
func checkYears(notBefore, notAfter *time.Time) error {
	if outOfYears(notBefore) {
		return errors.New("not_before: " + inYears)
	}
	if outOfYears(notAfter) {
		return errors.New("not_after: " + inYears)
	}
	return nil
}

const inYears = "must be in the years 1 to 9999, in UTC"

func outOfYears(at *time.Time) bool {
	return at != nil && (at.UTC().Year() < 1 || at.UTC().Year() > 9999)
}

// never says that there is no time between.
func never(from, to *time.Time) bool { return from != nil && to != nil && !to.After(*from) }
