package decision

import (
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// closed reports whether task c may not start in a window now. The ledger's claims
// use the same rule.
func closed(o store.Opening, c *store.Candidate, now time.Time) bool {
	return shut(o, now) || tooShort(o, c, now)
}

// shut reports whether no task may start in a window now, however short its lease is.
func shut(o store.Opening, now time.Time) bool {
	return !o.Until.IsZero() && (o.From.After(now) || !o.Until.After(now))
}

// tooShort reports whether a window is open now, but not for as long as task c needs.
func tooShort(o store.Opening, c *store.Candidate, now time.Time) bool {
	return !o.Until.IsZero() && !shut(o, now) && !o.Until.After(now.Add(needed(c)))
}

// Closed reports whether no task with this lease may start in a window now. It returns false if
// the window is always open.
func Closed(o store.Opening, lease time.Duration, finishInside bool, now time.Time) bool {
	return closed(o, &store.Candidate{Lease: lease, FinishInside: finishInside}, now)
}

// needed returns the time that must be left in a window when the task starts.
func needed(c *store.Candidate) time.Duration {
	if c.FinishInside {
		return c.Lease
	}
	return 0
}

// opens returns when a closed window should be tried again. It is zero if the time is unknown.
func opens(o store.Opening, c *store.Candidate, now time.Time) time.Time {
	switch {
	case o.From.After(now) && o.Until.Sub(o.From) > needed(c):
		return o.From
	case o.Until.After(now): // too little time is left; the next opening is known when this one has ended
		return o.Until
	}
	return time.Time{} // the window has ended, and the next opening is being computed
}
