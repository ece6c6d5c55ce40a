package decision

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// Explanation is the state of a task, with the causes of this state.
type Explanation struct {
	At     time.Time // time of the explanation, by the ledger's clock
	State  store.TaskState
	Causes []Cause // at least one; for a waiting task first the causes that do not pass by themselves, each kind in this order: a revoked token, the obstacles in the order of the rules, other causes
	Mark   *Mark   // mark of the device; nil if unknown
}

// Mark describes the mark of a device (the field in Redis which says that the device has work), and
// whether the device has work in the ledger.
type Mark struct {
	Present bool // the device has a mark of work
	Trusted bool // true if the dispatcher would trust a missing mark of this device now, and answer that the device has no work
	HasWork bool // the ledger has an open task or a grant of the device
}

// Cause is one reason why a task is in its state.
type Cause struct {
	Code           Code
	Detail         string    // for people
	Until          time.Time // when the cause may end by itself; zero if unknown
	Position       int       // CodeFull: as in PoolStatus, but only if CodeFull is the only obstacle; CodeCallersFull: place among the waiting callers; otherwise 0
	EstimatedStart time.Time // zero if it cannot be estimated
	Remedy         string    // how the cause can be removed, for people
	Actions        []Action  // actions of the remedy, in its order; empty if no single command helps
	Policy         string    // for CodeLimited: the limit of the policy that refuses, and its name
}

// PoolStatus describes how full a pool is, and the place of one device and one of its tasks in the queue of the pool.
type PoolStatus struct {
	Held, Capacity  int
	UnreservedSlots int   // slots that are neither held nor offered
	Unreachable     bool  // the semaphore did not answer
	Position        int   // position of the explained task in the queue: at position n it starts with the n-th of the pool's next grants; 0 if unknown
	FirstTask       int64 // id of the first of the device's tasks that could start; 0 if unknown
	InQueue         bool
	ReportDueIn     time.Duration // if InQueue: time until the device should report again; negative if it is overdue
	OfferLeft       time.Duration // time for which a slot stays reserved for the device; 0 if no slot is offered to it
	Waiting         int           // devices in the queue
	Lane            UrgentLane
}

// UrgentLane has the totals of the urgent batches of a pool.
type UrgentLane struct {
	Held    int // slots that urgent batches hold or are offered
	Room    int // slots for which urgent batches still go before all other batches; may be negative
	Waiting int // devices that wait with a task of an urgent batch
}

// isFull reports whether there is no slot for the device: every slot is held, or offered to another device.
func (s PoolStatus) isFull() bool { return !s.Unreachable && s.UnreservedSlots < 1 && s.OfferLeft == 0 }

// WaitFacts holds the facts about a waiting task that its view does not contain.
type WaitFacts struct {
	PoolStatuses map[string]PoolStatus // by pool: the task's pool, and each pool in which another task of its device could start
	Obstacles    map[int64]Obstacle    // obstacles that policies found now, by task id
	Seen         store.LastReport      // the last report of the device; zero if it never reported
	Period       time.Duration         // report period of an idle device
	Hold         time.Duration         // usual hold time of grants of the task's pool; 0 if unknown
	CallerBound  *store.CallerBound    // how many slots callers hold and may hold, for the task of a caller; nil if unknown, or if the task belongs to a device
}

// Explain describes how the view's task runs or has ended. If the task waits, Explain lists all obstacles between the task and its start, by the
// rules that also decide reports. Only then it calls readFacts, to get the facts that the view does not contain.
func Explain(view store.TaskView, readFacts func(waiting store.Candidate) WaitFacts) Explanation {
	e := Explanation{At: view.Now, State: view.Task.State}
	open := slices.IndexFunc(view.Candidates, func(c store.Candidate) bool { return c.Task == view.Task.ID })
	switch {
	case view.RunningGrant != nil:
		e.Causes = explainRunning(view)
	case view.Task.State != store.Pending:
		e.Causes = explainEnded(view)
	case open < 0:
		e.Causes = []Cause{causeOfEnding(view)}
	default:
		e.Causes = explainWaiting(view, view.Candidates[open], readFacts(view.Candidates[open]))
	}
	return e
}

// explainWaiting returns the causes for which the view's task waits: a revoked token, all obstacles, and other causes, such as a device that
// does not report. task is the same task as a store.Candidate. The causes that do not pass by themselves come first.
func explainWaiting(view store.TaskView, task store.Candidate, facts WaitFacts) []Cause {
	s := ExpectedSituation(view.DeviceView, facts.Obstacles)
	s.FullPools, s.UnreachablePools, s.CallerBound = make(map[string]bool), make(map[string]bool), facts.CallerBound
	for pool, status := range facts.PoolStatuses {
		s.FullPools[pool], s.UnreachablePools[pool] = status.isFull(), status.Unreachable
	}
	x := causeWriter{TaskView: view, status: facts.PoolStatuses[task.Pool], candidate: task, lastReport: facts.Seen, period: facts.Period}
	x.untilTurn = facts.Hold * time.Duration(x.status.Position) / time.Duration(max(x.status.Capacity, 1))
	if facts.CallerBound != nil {
		x.callerBound = *facts.CallerBound
	}
	var causes []Cause
	if view.Device != nil && view.Device.Revoked() {
		causes = append(causes, x.revokedCause())
	}
	obstacles := s.obstacles(task)
	if len(causes)+len(obstacles) > 1 { // the task has another cause than its place in the queue
		x.status.Position = 0
	}
	for _, o := range obstacles {
		r := o.explain(x, o)
		r.Code, r.Until = o.Code, o.Until
		causes = append(causes, r)
	}
	if other := findEarlierTask(s, task, x.status.FirstTask); other != nil {
		causes = append(causes, x.otherTaskFirstCause(*other))
	}
	if silent, is := x.deviceSilentCause(); is {
		causes = append(causes, silent)
	}
	if view.Device != nil && view.Device.IsNoisy(view.Now) {
		causes = append(causes, x.deviceNoisyCause())
	}
	switch {
	case len(causes) == 0:
		causes = append(causes, x.nextReportCause())
	case len(causes) == 1 && causes[0].Code == CodeFull: // only the queue delays the task
		causes[0].EstimatedStart = x.estimateStart()
	}
	return x.sortCauses(causes)
}

// sortCauses sorts the causes that do not pass by themselves first. If the task also waits for something else than a free slot, sortCauses
// removes the advice to raise the capacity.
func (x causeWriter) sortCauses(causes []Cause) []Cause {
	slices.SortStableFunc(causes, func(a, b Cause) int { return comparePermanence(a.Code, b.Code) })
	if causes[0].Code != CodeFull && x.status.Capacity > 0 {
		for i := range causes {
			causes[i] = causes[i].WithoutCapacityAdvice("wait for a free slot")
		}
	}
	return causes
}

// findEarlierTask returns the task that the device would get before task if the pool of task had a free slot. It is a task of a pool that is
// tried earlier, or the task with the id firstTask in the same pool. If firstTask is 0, the semaphore did not answer, and the order inside
// the batch decides. The result is nil if no task goes first, or if task has another obstacle than its full or unreachable pool.
func findEarlierTask(situation Situation, task store.Candidate, firstTask int64) *store.Candidate {
	situation.FullPools, situation.UnreachablePools = maps.Clone(situation.FullPools), maps.Clone(situation.UnreachablePools)
	situation.FullPools[task.Pool], situation.UnreachablePools[task.Pool] = false, false
	if len(situation.obstacles(task)) > 0 {
		return nil
	}
	open := Decide(situation).Tasks // not empty: task has no obstacle
	if open[0].Pool != task.Pool {
		return &open[0]
	}
	for _, o := range open {
		if o.Task == firstTask && firstTask != task.Task || firstTask == 0 && GoesBefore(o, task) {
			return &o
		}
	}
	return nil
}

// GoesBefore reports whether a and b are tasks of one batch and a comes first. taskSortText of package slots and the SQL of package store repeat
// this order.
func GoesBefore(a, b store.Candidate) bool {
	return a.Batch == b.Batch && cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Task, b.Task)) < 0
}
