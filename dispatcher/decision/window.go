package decision

import (
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// closed reports whether the window o does not allow task c to start now. Claims in the ledger
// repeat this rule in SQL (windowOpen in package store).
func closed(o store.Opening, c *store.Candidate, now time.Time) bool {
	return isClosedNow(o, now) || isTooShort(o, c, now)
}

// isClosedNow reports whether the window o allows no task to start now, however short the task's
// lease is.
func isClosedNow(o store.Opening, now time.Time) bool {
	return !o.Until.IsZero() && (o.From.After(now) || !o.Until.After(now))
}

// isTooShort reports whether the window o is open now, but closes before the time that task c needs
// has passed.
func isTooShort(o store.Opening, c *store.Candidate, now time.Time) bool {
	return !o.Until.IsZero() && !isClosedNow(o, now) && !o.Until.After(now.Add(requiredTime(c)))
}

// Closed reports whether the window o does not allow a task with this lease to start now. It
// returns false if the window is always open.
func Closed(o store.Opening, lease time.Duration, finishInside bool, now time.Time) bool {
	return closed(o, &store.Candidate{Lease: lease, FinishInside: finishInside}, now)
}

// requiredTime returns the time that must be left in a window when the task starts.
func requiredTime(c *store.Candidate) time.Duration {
	if c.FinishInside {
		return c.Lease
	}
	return 0
}

// windowRetryTime returns when a closed window should be tried again. It is zero if the time is unknown.
func windowRetryTime(o store.Opening, c *store.Candidate, now time.Time) time.Time {
	switch {
	case o.From.After(now) && o.Until.Sub(o.From) > requiredTime(c):
		return o.From
	case o.Until.After(now): // too little time is left; the next opening is known when this one has ended
		return o.Until
	}
	return time.Time{} // the window has ended, and the next opening is being computed
}
