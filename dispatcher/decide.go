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
	Unsure     map[string]bool // pools of which the semaphore does not answer
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

// Decide is the one place that says who gets what and why not; obstaclesOf is
// its judgement of one task.
//
// After a restore neither a new grant nor an old one is given out: the place of
// a grant whose end was lost may have been handed on since, to a device that
// the ledger does not know of.
func Decide(s Situation) Choice {
	if obstacles := s.ofDevice(); len(obstacles) > 0 {
		return refusal(obstacles)
	}
	if s.Holding == nil {
		return next(s)
	}
	if s.Now.Before(s.Standstill) {
		return Choice{Reason: devices.ReasonUnavailable, Until: s.Standstill}
	}
	return Choice{Reason: devices.ReasonGranted, Redeliver: true}
}

// next picks the best open task of an idle device, or the reason that stands in
// the way of the best one: see nearer.
func next(s Situation) Choice {
	ordered := slices.SortedFunc(slices.Values(s.Candidates), before)
	nearest := Choice{Reason: devices.ReasonNone}
	for i := range ordered {
		obstacles := s.ofTask(ordered[i])
		if len(obstacles) == 0 {
			return Choice{Reason: devices.ReasonGranted, Task: &ordered[i]}
		}
		nearest = nearer(nearest, refusal(obstacles))
	}
	return nearest
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
		return slices.Index([]devices.Reason{devices.ReasonNone, devices.ReasonWindow, devices.ReasonPaused, devices.ReasonFull, devices.ReasonUnavailable}, c.Reason)
	}
	switch {
	case rank(b) > rank(a):
		return b
	case rank(b) == rank(a) && !b.Until.IsZero() && (a.Until.IsZero() || b.Until.Before(a.Until)):
		return b
	}
	return a
}
