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
	Full       map[string]bool    // pools found full while answering this report
	Unsure     map[string]bool    // pools of which the semaphore does not answer
	Offered    []string           // pools that keep a place for the device
	Limited    map[int64]Obstacle // by task: what its policies say against it now
}

// Choice is the decision: a grant to deliver again, tasks to try, or a reason
// for neither.
type Choice struct {
	Reason    devices.Reason    // granted with Redeliver or Tasks; else why not
	Redeliver bool              // deliver Holding again
	Tasks     []store.Candidate // of one pool: acquire a slot for whichever has its turn
	Until     time.Time         // when the reason may end; zero: unknown
	Shared    bool              // many devices wait for Until
	Policy    string            // that says no, of limited
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

// next picks what an idle device may do, or the reason that stands in the way
// of the best task: see nearer. The pool that is tried first is one that keeps a
// place for the device, else that of its oldest batch; which task of a pool, the
// order decides (slots.Acquire), in which the device stands among all others.
func next(s Situation) Choice {
	var open []store.Candidate
	nearest := Choice{Reason: devices.ReasonNone}
	for _, c := range slices.SortedFunc(slices.Values(s.Candidates), s.sooner) {
		obstacles := s.ofTask(c)
		switch {
		case len(obstacles) > 0:
			nearest = nearer(nearest, refusal(obstacles))
		case len(open) == 0 || c.Pool == open[0].Pool:
			open = append(open, c)
		}
	}
	if len(open) > 0 {
		return Choice{Reason: devices.ReasonGranted, Tasks: open}
	}
	return nearest
}

// sooner puts pools that keep a place for the device before the others.
func (s Situation) sooner(a, b store.Candidate) int {
	kept := func(c store.Candidate) int {
		if slices.Contains(s.Offered, c.Pool) {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(kept(a), kept(b)), older(a, b))
}

// older orders tasks by the age of their batches; there is one of each.
func older(a, b store.Candidate) int { return cmp.Compare(a.Batch, b.Batch) }

// nearer keeps the refusal that is nearest to a grant: it is what the operator
// and the device want to know. Of two times the earlier one counts, and a known
// one before an unknown.
func nearer(a, b Choice) Choice {
	rank := func(c Choice) int {
		return slices.Index([]devices.Reason{devices.ReasonNone, devices.ReasonWindow, devices.ReasonPaused, devices.ReasonLimited, devices.ReasonFull, devices.ReasonUnavailable}, c.Reason)
	}
	switch {
	case rank(b) > rank(a):
		return b
	case rank(b) == rank(a) && !b.Until.IsZero() && (a.Until.IsZero() || b.Until.Before(a.Until)):
		return b
	}
	return a
}
