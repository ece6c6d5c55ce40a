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

// Closed is whether nothing that has such a lease may start in a window now, as far as it
// is known when the window opens.
func Closed(o store.Opening, lease time.Duration, finishInside bool, now time.Time) bool {
	return closed(o, &store.Candidate{Lease: lease, FinishInside: finishInside}, now)
}

// needed is what must be left of a window when the task starts.
func needed(c *store.Candidate) time.Duration {
	if c.FinishInside {
		return c.Lease
	}
	return 0
}

// opens is when a closed window is worth asking for again; zero: unknown.
func opens(o store.Opening, c *store.Candidate, now time.Time) time.Time {
	switch {
	case o.From.After(now) && o.Until.Sub(o.From) > needed(c):
		return o.From
	case o.Until.After(now): // too little is left; the next is known when this one is over
		return o.Until
	}
	return time.Time{} // over: when it opens again is being computed
}
