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
}

// Decide is the one place that says who gets what and why not.
func Decide(s Situation) Choice {
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
		case c.EligibleAt.After(s.Now):
			refusal = nearer(refusal, Choice{Reason: devices.ReasonWindow, Until: c.EligibleAt})
		case s.Full[c.Pool]:
			refusal = nearer(refusal, Choice{Reason: devices.ReasonFull})
		default:
			return Choice{Reason: devices.ReasonGranted, Task: c}
		}
	}
	return refusal
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
// and the device want to know. Of two times the earlier one counts.
func nearer(a, b Choice) Choice {
	rank := func(c Choice) int {
		return slices.Index([]devices.Reason{devices.ReasonNone, devices.ReasonWindow, devices.ReasonPaused, devices.ReasonFull}, c.Reason)
	}
	switch {
	case rank(b) > rank(a):
		return b
	case rank(b) == rank(a) && b.Until.Before(a.Until):
		return b
	}
	return a
}
