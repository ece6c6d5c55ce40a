package decision

import (
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// closed reports whether windows do not allow task to start at the time now. opening is the current or the next opening of these windows.
// Claims in the ledger repeat this rule in SQL (windowOpen in package store).
func closed(opening store.Opening, task *store.Candidate, now time.Time) bool {
	return isClosedNow(opening, now) || isTooShort(opening, task, now)
}

// isClosedNow reports whether windows allow no task to start now, however short its lease is. opening is their current or next opening.
func isClosedNow(opening store.Opening, now time.Time) bool {
	return !opening.Until.IsZero() && (opening.From.After(now) || !opening.Until.After(now))
}

// isTooShort reports whether a window with this opening is open now, but closes before the time that task needs has passed.
func isTooShort(opening store.Opening, task *store.Candidate, now time.Time) bool {
	return !opening.Until.IsZero() && !isClosedNow(opening, now) && !opening.Until.After(now.Add(requiredTime(task)))
}

// Closed reports whether windows do not allow a task with this lease to start at the time now. opening is their current or next opening. If
// finishInside is true, the window must stay open for the whole lease. Closed returns false if the windows are always open.
func Closed(opening store.Opening, lease time.Duration, finishInside bool, now time.Time) bool {
	return closed(opening, &store.Candidate{Lease: lease, FinishInside: finishInside}, now)
}

// requiredTime returns the time that must be left in a window when task starts: its lease, or 0 if the lease may end outside of the
// window.
func requiredTime(task *store.Candidate) time.Duration {
	if task.FinishInside {
		return task.Lease
	}
	return 0
}

// windowRetryTime returns the time at which task, which windows do not allow to start now, should be tried again. opening is the current or
// the next opening of these windows. The time is zero if it is unknown.
func windowRetryTime(opening store.Opening, task *store.Candidate, now time.Time) time.Time {
	switch {
	case opening.From.After(now) && opening.Until.Sub(opening.From) > requiredTime(task):
		return opening.From
	case opening.Until.After(now): // too little time is left; the next opening is known when this one has ended
		return opening.Until
	}
	return time.Time{} // the window has ended, and the next opening is being computed
}
