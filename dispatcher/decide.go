package dispatcher

import (
	"cmp"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// Situation is everything that decides about a report's next task, as plain
// values: no clock, no store.
type Situation struct {
	Now        time.Time // the ledger's clock
	Standstill time.Time // nothing is granted before, after a restore; zero: no such time
	Blocked    bool
	Accept     bool
	Stopping   bool // a running task was told to stop, or could not be confirmed
	Holding    *store.Grant
	Mentioned  bool // the report speaks of the grant it holds
	Candidates []store.Candidate
	Full       map[string]bool // pools found full while answering this report
}

// Choice is the decision: a grant to deliver again, a task to try, or a reason
// for neither.
type Choice struct {
	Reason    devices.Reason   // granted with Redeliver or Task; else why not
	Redeliver bool             // deliver Holding again
	Task      *store.Candidate // acquire a slot for it
	Until     time.Time        // when the reason may end; zero: unknown
	Shared    bool             // many devices wait for Until
}

// Decide is the one place that says who gets what and why not.
//
// After a restore neither a new grant nor an old one is given out: the place of
// a grant whose end was lost may have been handed on since, to a device that
// the ledger does not know of.
func Decide(s Situation) Choice {
	choice := decide(s)
	if choice.Reason == devices.ReasonGranted && s.Now.Before(s.Standstill) {
		return Choice{Reason: devices.ReasonUnavailable, Until: s.Standstill}
	}
	return choice
}

func decide(s Situation) Choice {
	switch {
	case s.Blocked:
		return Choice{Reason: devices.ReasonBlocked}
	case !s.Accept:
		return Choice{Reason: devices.ReasonDeclined}
	case s.Stopping:
		return Choice{Reason: devices.ReasonBusy}
	case s.Holding != nil && (s.Mentioned || s.Holding.CancelWhy != ""):
		return Choice{Reason: devices.ReasonBusy, Until: s.Holding.LeaseUntil}
	case s.Holding != nil:
		return Choice{Reason: devices.ReasonGranted, Redeliver: true}
	}
	return next(s)
}

// next picks the best open task, or the reason that stands in the way of the
// best one: a full pool before a pause before a time to come.
func next(s Situation) Choice {
	ordered := slices.SortedFunc(slices.Values(s.Candidates), before)
	refusal := Choice{Reason: devices.ReasonNone}
	for i := range ordered {
		c := &ordered[i]
		switch {
		case c.PoolPaused || c.BatchPaused:
			refusal = nearer(refusal, Choice{Reason: devices.ReasonPaused})
		case notYet(*c, s.Now):
			refusal = nearer(refusal, waiting(*c, s.Now))
		case s.Full[c.Pool]:
			refusal = nearer(refusal, Choice{Reason: devices.ReasonFull})
		default:
			return Choice{Reason: devices.ReasonGranted, Task: c}
		}
	}
	return refusal
}

// notYet says whether the time of a task has not come: its batch has not begun,
// it waits to be tried again, or a window is closed.
func notYet(c store.Candidate, now time.Time) bool {
	return c.EligibleAt.After(now) || closed(c.Window, c, now) || closed(c.PoolWindow, c, now)
}

// closed says whether nothing may start in a window now. The ledger's claims
// say the same.
func closed(o store.Opening, c store.Candidate, now time.Time) bool {
	return !o.Until.IsZero() && (o.From.After(now) || !o.Until.After(now.Add(needed(c))))
}

// needed is what must be left of a window when the task starts.
func needed(c store.Candidate) time.Duration {
	if c.FinishInside {
		return c.Lease
	}
	return 0
}

// waiting is the refusal of a task whose time has not come. What all devices of
// a batch or pool wait for is shared, what one task waits for after an attempt
// is not.
func waiting(c store.Candidate, now time.Time) Choice {
	choice := Choice{Reason: devices.ReasonWindow}
	if c.EligibleAt.After(now) {
		choice.Until, choice.Shared = c.EligibleAt, c.Attempt <= 1
	}
	for _, o := range []store.Opening{c.Window, c.PoolWindow} {
		if !closed(o, c, now) {
			continue
		}
		at := opens(o, c, now)
		if at.IsZero() { // over: when it opens again is being computed
			return Choice{Reason: devices.ReasonWindow}
		}
		if !at.Before(choice.Until) {
			choice.Until, choice.Shared = at, true
		}
	}
	return choice
}

// opens is when a closed window is worth asking for again; zero: unknown.
func opens(o store.Opening, c store.Candidate, now time.Time) time.Time {
	switch {
	case o.From.After(now) && o.Until.Sub(o.From) > needed(c):
		return o.From
	case o.Until.After(now): // too little is left; the next is known when this one is over
		return o.Until
	}
	return time.Time{}
}

// before is the order of tasks: priority, then age of the batch, then number.
func before(a, b store.Candidate) int {
	return cmp.Or(
		cmp.Compare(b.Priority, a.Priority),
		a.CreatedAt.Compare(b.CreatedAt),
		cmp.Compare(a.Task, b.Task),
	)
}

// nearer keeps the refusal that is nearest to a grant: it is what the operator
// and the device want to know. Of two times the earlier one counts, and a known
// one before an unknown.
func nearer(a, b Choice) Choice {
	rank := func(c Choice) int {
		return slices.Index([]devices.Reason{devices.ReasonNone, devices.ReasonWindow, devices.ReasonPaused, devices.ReasonFull}, c.Reason)
	}
	switch {
	case rank(b) > rank(a):
		return b
	case rank(b) == rank(a) && !b.Until.IsZero() && (a.Until.IsZero() || b.Until.Before(a.Until)):
		return b
	}
	return a
}
