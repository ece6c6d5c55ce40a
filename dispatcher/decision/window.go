package decision

import (
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// isClosedNow reports whether the windows of a pool or a batch are closed now. opening is their current or next opening.
func isClosedNow(opening store.Opening, now time.Time) bool {
	return !opening.Until.IsZero() && (opening.From.After(now) || !opening.Until.After(now))
}

// closesTooSoon reports whether a window is open now, but closes before the time that task needs has passed.
func closesTooSoon(opening store.Opening, task *store.Candidate, now time.Time) bool {
	return !opening.Until.IsZero() && !isClosedNow(opening, now) && !opening.Until.After(now.Add(requiredWindowTime(task)))
}

// ForbidsStart reports whether the windows of a pool or a batch forbid a task with this lease to start now. opening is their current or next
// opening, or zero if they are always open. If mustFinishInside is true, the window must stay open for the whole lease. The SQL of claims
// repeats this rule (windowOpenSQL in package store).
func ForbidsStart(opening store.Opening, lease time.Duration, mustFinishInside bool, now time.Time) bool {
	return isClosedNow(opening, now) || closesTooSoon(opening, &store.Candidate{Lease: lease, FinishInside: mustFinishInside}, now)
}

// requiredWindowTime returns the time that must be left in a window when task starts.
func requiredWindowTime(task *store.Candidate) time.Duration {
	if task.FinishInside {
		return task.Lease
	}
	return 0
}

// windowRetryTime returns the time at which a task that windows do not allow to start now should be tried again. The result is zero if the
// time is unknown.
func windowRetryTime(opening store.Opening, task *store.Candidate, now time.Time) time.Time {
	switch {
	case opening.From.After(now) && opening.Until.Sub(opening.From) > requiredWindowTime(task):
		return opening.From
	case opening.Until.After(now): // too little time is left; the next opening is known when this one has ended
		return opening.Until
	}
	return time.Time{} // the window has ended, and the next opening is being computed
}
