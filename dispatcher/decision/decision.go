package decision

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
	Standstill time.Time // after a restore Holding is not delivered again before this time. If it is zero, there was no restore
	Blocked    bool
	Accept     bool
	Stopping   bool // a running task was told to stop, or could not be confirmed
	Holding    *store.Grant
	Mentioned  bool // the report speaks of the grant it holds
	Candidates []store.Candidate
	Full       map[string]bool    // pools found full while answering this report
	Unsure     map[string]bool    // pools of which the semaphore does not answer
	Offered    []string           // pools in which a slot is offered to the device
	Limited    map[int64]Obstacle // by task: what its policies say against it now
	Callers    *store.Callers     // how their bound stands to the one that asks; nil: it is a device
}

// Foreseen is the situation of the next report of a device, as far as the ledger knows
// it: the device accepts work, and knows of the grant it holds.
func Foreseen(v store.View, limited map[int64]Obstacle) Situation {
	return Situation{
		Now: v.Now, Standstill: v.Standstill, Blocked: v.Device != nil && v.Device.Blocked, Accept: true,
		Holding: v.Grant, Mentioned: true, Candidates: v.Candidates, Limited: limited,
	}
}

// Choice is the decision: a grant to deliver again, tasks to try, or a reason
// for neither.
type Choice struct {
	Reason    devices.Reason    // granted with Redeliver or Tasks; else why not
	Redeliver bool              // deliver Holding again
	Tasks     []store.Candidate // of one pool: acquire a slot for whichever has its turn
	Until     time.Time         // when the reason may end; zero: unknown
	Shared    bool              // many devices wait for Until
	Own       bool              // something keeps this task alone from a slot, and no other of its pool
	Policy    string            // that says no, of limited
}

// Decide says what the device gets, or why it gets nothing.
//
// After a restore neither a new grant nor an old one is given out: the slot of
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
// of the best task: see nearer. The pool that is tried first is that of an urgent batch, else
// one in which a slot is offered to the device, else that of its oldest batch. Which task of a pool starts,
// the semaphore decides by the order of all waiters.
func next(s Situation) Choice {
	var open []store.Candidate
	nearest, rules := Choice{Reason: devices.ReasonNone}, rulesOfTask()
	candidates := slices.Clone(s.Candidates)
	slices.SortStableFunc(candidates, s.tried)
	for i := range candidates {
		obstacles := found(rules, &s, &candidates[i])
		switch {
		case len(obstacles) > 0:
			nearest = nearer(nearest, refusal(obstacles))
		case len(open) == 0 || candidates[i].Pool == open[0].Pool:
			open = append(open, candidates[i])
		}
	}
	if len(open) > 0 {
		return Choice{Reason: devices.ReasonGranted, Tasks: open}
	}
	return nearest
}

// tried orders tasks: those of urgent batches come first, then pools in which a slot is
// offered to the device.
func (s Situation) tried(a, b store.Candidate) int {
	offered := func(c store.Candidate) bool { return slices.Contains(s.Offered, c.Pool) }
	return cmp.Or(first(a.Urgent, b.Urgent), first(offered(a), offered(b)), Older(a, b))
}

// first orders what has something before what has it not.
func first(a, b bool) int {
	if a == b {
		return 0
	}
	if a {
		return -1
	}
	return 1
}

// Older orders tasks by the age of their batches.
func Older(a, b store.Candidate) int { return cmp.Compare(a.Batch, b.Batch) }

// UrgentLast orders tasks of urgent batches behind the others.
func UrgentLast(a, b store.Candidate) int { return first(b.Urgent, a.Urgent) }

// PoolsOf are the pools of tasks, each once.
func PoolsOf(open []store.Candidate) (pools []string) {
	seen := make(map[string]bool)
	for _, c := range open {
		if !seen[c.Pool] {
			seen[c.Pool] = true
			pools = append(pools, c.Pool)
		}
	}
	return pools
}
