package decision

import (
	"cmp"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// Situation holds all facts, as plain values, that determine which task the report of a device gets next.
type Situation struct {
	Now              time.Time // the ledger's clock
	Standstill       time.Time // after a restore of the ledger, HeldGrant is not delivered again before this time; zero if there was no restore
	Blocked          bool
	Accept           bool
	MustStop         bool // the reply asks the device to stop a running task
	HeldGrant        *store.Grant
	Mentioned        bool // true if the report mentions HeldGrant
	Candidates       []store.Candidate
	FullPools        map[string]bool    // pools found full while this report was handled
	UnreachablePools map[string]bool    // pools for which the semaphore does not answer
	OfferedPools     []string           // pools in which a slot is offered to the device
	Wire             devices.Wire       // the wire of the device; empty if unknown
	Obstacles        map[int64]Obstacle // obstacles that policies found now, by task id
	CallerBound      *store.CallerBound // how many slots callers hold and may hold, for the reporter; nil if the reporter is a device
}

// ExpectedSituation returns the situation of the next report of the view's device. It assumes that the device will accept work and mention the
// grant that it holds. obstaclesByTask holds the obstacles that policies found, by task id.
func ExpectedSituation(view store.DeviceView, obstaclesByTask map[int64]Obstacle) Situation {
	wire := devices.Wire("")
	if view.Device != nil {
		wire = devices.Wire(view.Device.Wire)
	}
	return Situation{
		Wire: wire, Now: view.Now, Standstill: view.Standstill, Blocked: view.Device != nil && view.Device.Blocked, Accept: true,
		HeldGrant: view.Grant, Mentioned: true, Candidates: view.Candidates, Obstacles: obstaclesByTask,
	}
}

// Choice is the result of a decision: to deliver a grant again, to try to start one of some tasks, or to refuse the device.
type Choice struct {
	Reason        devices.Reason    // ReasonGranted if Redeliver or Tasks is set; otherwise the reason of the refusal
	Redeliver     bool              // deliver HeldGrant again
	Tasks         []store.Candidate // tasks of one pool: acquire a slot for the task whose turn it is
	Until         time.Time         // when the reason may end; zero if unknown
	Shared        bool              // many devices wait for the same Until
	BlocksOneTask bool              // for a caller: an obstacle lets the callers behind it go first
	Policy        string            // name of the policy that refuses, if the reason is limited
}

// Decide returns which of its tasks the device may start in this situation, or that its grant is delivered again, or why it gets nothing.
//
// After a restore of the ledger, no grant is delivered until the standstill ends. The restored ledger may not know that an old grant has
// ended and that another device now holds the slot.
func Decide(situation Situation) Choice {
	if obstacles := situation.deviceObstacles(); len(obstacles) > 0 {
		return choiceForObstacles(obstacles)
	}
	if situation.HeldGrant == nil {
		return chooseNextTasks(situation)
	}
	if situation.Now.Before(situation.Standstill) {
		return Choice{Reason: devices.ReasonUnavailable, Until: situation.Standstill}
	}
	return Choice{Reason: devices.ReasonGranted, Redeliver: true}
}

// chooseNextTasks returns the tasks of one pool that an idle device may start. It prefers the pool of an urgent batch, then a pool in which a
// slot is offered to the device, then the pool of its oldest batch. The semaphore later decides which of the tasks starts. If no task may start,
// chooseNextTasks returns the refusal that is nearest to a grant.
func chooseNextTasks(situation Situation) Choice {
	var open []store.Candidate
	nearest, rules := Choice{Reason: devices.ReasonNone}, taskRules()
	candidates := slices.Clone(situation.Candidates)
	slices.SortStableFunc(candidates, situation.compareCandidates)
	for i := range candidates {
		obstacles := findObstacles(rules, &situation, &candidates[i])
		switch {
		case len(obstacles) > 0:
			nearest = refusalNearerToGrant(nearest, choiceForObstacles(obstacles))
		case len(open) == 0 || candidates[i].Pool == open[0].Pool:
			open = append(open, candidates[i])
		}
	}
	if len(open) > 0 {
		return Choice{Reason: devices.ReasonGranted, Tasks: open}
	}
	return nearest
}

// FirstTask returns the id of the task that the view's device runs. If the device runs no task, it returns the task that the next report would
// try first. If no task may start, it returns a task of the device's oldest batch. It returns 0 if the device has no open task.
func FirstTask(view store.DeviceView) (taskID int64) {
	switch open := Decide(ExpectedSituation(view, nil)).Tasks; {
	case view.Grant != nil:
		return view.Grant.Task
	case len(open) > 0:
		return open[0].Task
	case len(view.Candidates) > 0:
		return slices.MinFunc(view.Candidates, CompareBatchAge).Task
	}
	return 0
}

func (s Situation) compareCandidates(a, b store.Candidate) int {
	offered := func(c store.Candidate) bool { return slices.Contains(s.OfferedPools, c.Pool) }
	return cmp.Or(compareTrueFirst(a.Urgent, b.Urgent), compareTrueFirst(offered(a), offered(b)), CompareBatchAge(a, b))
}

func compareTrueFirst(a, b bool) int {
	if a == b {
		return 0
	}
	if a {
		return -1
	}
	return 1
}

// CompareBatchAge sorts the task of the older batch first.
func CompareBatchAge(a, b store.Candidate) int { return cmp.Compare(a.Batch, b.Batch) }

// CompareUrgentLast sorts tasks of urgent batches last.
func CompareUrgentLast(a, b store.Candidate) int { return compareTrueFirst(b.Urgent, a.Urgent) }

// DistinctPools returns the pools of tasks, each once, in the order of the tasks.
func DistinctPools(tasks []store.Candidate) (pools []string) {
	seen := make(map[string]bool)
	for _, c := range tasks {
		if !seen[c.Pool] {
			seen[c.Pool] = true
			pools = append(pools, c.Pool)
		}
	}
	return pools
}
