package dispatcher

import (
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/internal/deadline"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/store"
)

// MaxEvaluated is the maximum number of tasks that one request evaluates. In a sample of this size, a reason that holds for 1 % of the tasks
// is found.
const MaxEvaluated = 500

const (
	// evaluationTimeShare is the part of the remaining time of a request that an evaluation may take. The rest is for the answer.
	evaluationTimeShare = 0.75
	// firstStepTasks is the number of tasks in the first step of an evaluation. Each later step has twice as many tasks as the step before.
	// The results of a step that does not end in time are not used.
	firstStepTasks = 16
	// maxConcurrentEvaluations is the maximum number of tasks that are evaluated concurrently. Each of them may need a connection to Redis.
	maxConcurrentEvaluations = 16
)

// WaitSummary summarizes why a set of tasks waits, grouped by reason.
type WaitSummary struct {
	Total     int64 // waiting tasks
	Evaluated int   // evaluated tasks; if it is less than Total, the counts of Groups are extrapolated to Total
	Groups    []decision.CauseGroup
}

// SummarizeWaiting explains the waiting tasks of a batch or a pool (scope) and counts them by reason. If more than maxTasks tasks wait, or
// if the time of ctx runs out, it evaluates a random sample. It returns store.ErrNotFound if there is no such batch or pool.
func (x *Explainer) SummarizeWaiting(ctx context.Context, scope store.TaskScope, maxTasks int) (WaitSummary, error) {
	sample, err := x.ledger.SampleWaiting(ctx, scope, min(maxTasks, MaxEvaluated))
	if err != nil {
		return WaitSummary{}, fmt.Errorf("explaining waiting tasks: %w", err)
	}
	mathrand.Shuffle(len(sample.Views), func(i, j int) { sample.Views[i], sample.Views[j] = sample.Views[j], sample.Views[i] })
	evaluated, err := x.explainTasks(ctx, sample.Views)
	if err != nil {
		return WaitSummary{}, fmt.Errorf("explaining waiting tasks: %w", err)
	}
	if len(evaluated) == 0 { // all tasks that waited have started since they were counted
		return WaitSummary{}, nil
	}
	// The sort makes the examples in the groups the same in each answer for the same tasks.
	slices.SortFunc(evaluated, func(a, b decision.ExplainedTask) int {
		return store.WaitingPositionOf(a.Task).Compare(store.WaitingPositionOf(b.Task))
	})
	return WaitSummary{Total: sample.Total, Evaluated: len(evaluated), Groups: decision.GroupByCode(evaluated, sample.Total)}, nil
}

// ExplainNextTasks explains the next waiting tasks of a batch or a pool (scope) behind a position (after), in the order of their batches. It
// explains at most limit and at most MaxEvaluated tasks, and fewer if the time of ctx runs out. hasMore means that more tasks wait.
// ExplainNextTasks returns store.ErrNotFound if there is no such batch or pool.
func (x *Explainer) ExplainNextTasks(ctx context.Context, scope store.TaskScope, after store.WaitingPosition, limit int) (evaluated []decision.ExplainedTask, hasMore bool, err error) {
	found, err := x.ledger.NextWaiting(ctx, scope, after, min(limit, MaxEvaluated))
	if err == nil {
		evaluated, err = x.explainTasks(ctx, found.Views)
	}
	if err != nil {
		return nil, false, fmt.Errorf("explaining waiting tasks: %w", err)
	}
	return evaluated, !found.IsComplete || len(evaluated) < len(found.Views), nil
}

// explainTasks explains the tasks in views, in their order, until its time runs out. If it has explained no task by then, it explains all of
// them from the ledger alone.
func (x *Explainer) explainTasks(ctx context.Context, views []store.TaskView) ([]decision.ExplainedTask, error) {
	within, cancel := deadline.Share(ctx, evaluationTimeShare)
	defer cancel()
	all := newSharedStatusReader(x)
	evaluated := make([]decision.ExplainedTask, 0, len(views))
	for step := firstStepTasks; len(evaluated) < len(views); step *= 2 {
		next := views[len(evaluated):min(len(evaluated)+step, len(views))]
		var done []decision.ExplainedTask
		err := rescue.CallWithin(within, func() (err error) {
			answers, err := x.explainConcurrently(within, next, all)
			if err == nil && within.Err() == nil {
				done = answers
			}
			return err
		})
		if within.Err() != nil {
			break
		}
		if err != nil {
			return nil, x.panicked.Report("explaining tasks", err)
		}
		evaluated = append(evaluated, done...)
	}
	if len(evaluated) > 0 {
		return evaluated, nil
	}
	return x.explainByLedgerAlone(ctx, views), ctx.Err()
}

// explainConcurrently explains the tasks in views, in their order. shared makes each lookup once.
func (x *Explainer) explainConcurrently(ctx context.Context, views []store.TaskView, shared *sharedStatusReader) ([]decision.ExplainedTask, error) {
	obstacles := x.policies.FindObstacles(ctx, views)
	evaluated := make([]decision.ExplainedTask, len(views))
	var group rescue.Group
	group.SetLimit(maxConcurrentEvaluations)
	for i, v := range views {
		group.Go(func() error {
			evaluated[i] = x.explainFirstCause(ctx, v, obstacles[i], shared)
			return nil
		})
	}
	return evaluated, group.Wait()
}

func (x *Explainer) explainFirstCause(ctx context.Context, view store.TaskView, obstaclesByTask map[int64]decision.Obstacle, reader statusReader) decision.ExplainedTask {
	return decision.ExplainedTask{Task: view.Task, Cause: x.explain(ctx, view, obstaclesByTask, reader).Causes[0], LastSeen: x.lastReport(view).At}
}

func (x *Explainer) explainByLedgerAlone(ctx context.Context, views []store.TaskView) []decision.ExplainedTask {
	evaluated := make([]decision.ExplainedTask, len(views))
	for i, v := range views {
		evaluated[i] = x.explainFirstCause(ctx, v, nil, unavailableStatus{})
	}
	return evaluated
}

// sharedStatusReader makes the lookups for many tasks that are evaluated concurrently. Devices whose tasks are of the same pool and batches
// share one PoolStatus, because the place of a task depends on its batch, priority and age, not on its device.
type sharedStatusReader struct {
	explainer *Explainer

	mu               sync.Mutex
	readPoolStatuses map[string]func() decision.PoolStatus      // by pool and batches; looked up for the device of the first task
	offers           map[string]func() map[string]time.Duration // by pool; the time left of each offer, by device

	ledger sync.Mutex // held while the ledger is read, so that an evaluation uses one connection
}

func newSharedStatusReader(explainer *Explainer) *sharedStatusReader {
	return &sharedStatusReader{explainer: explainer, readPoolStatuses: make(map[string]func() decision.PoolStatus), offers: make(map[string]func() map[string]time.Duration)}
}

// lookUpOnce calls lookUp if resultByKey has no entry for key, and stores the result there. Concurrent and later calls with the same key get
// this result.
func lookUpOnce[T any](shared *sharedStatusReader, resultByKey map[string]func() T, key string, lookUp func() T) T {
	shared.mu.Lock()
	one := resultByKey[key]
	if one == nil {
		one = sync.OnceValue(lookUp)
		resultByKey[key] = one
	}
	shared.mu.Unlock()
	return one()
}

// readPoolStatus returns the status of a pool for tasks, which belong to the view's device. Devices with tasks of the same batches share one
// lookup, so the status leaves out what differs between devices: the position and the time of the next report.
func (c *sharedStatusReader) readPoolStatus(ctx context.Context, pool string, tasks []store.Candidate, view store.TaskView) decision.PoolStatus {
	best := firstTaskPerBatch(tasks)
	key := []byte(pool)
	for _, one := range best {
		key = strconv.AppendInt(append(key, ' '), one.Batch, 10)
	}
	s := lookUpOnce(c, c.readPoolStatuses, string(key), func() decision.PoolStatus {
		s := c.explainer.readPoolStatus(ctx, pool, best, view)
		s.Position, s.InQueue, s.ReportDueIn = 0, false, 0
		if first := slices.IndexFunc(best, func(one store.Candidate) bool { return one.Task == s.FirstTask }); first >= 0 {
			s.FirstTask = best[first].Batch // the shared status has the id of the batch here; each call below replaces it by the id of its own task
		}
		return s
	})
	if s.FirstTask != 0 {
		s.FirstTask = best[slices.IndexFunc(best, func(one store.Candidate) bool { return one.Batch == s.FirstTask })].Task
	}
	s.OfferLeft = 0
	if s.Held+s.UnreservedSlots < s.Capacity {
		s.OfferLeft = c.readOffersByDevice(ctx, pool)[view.Task.Device]
	}
	return s
}

// readCallerBound reads the ledger for one task at a time.
func (c *sharedStatusReader) readCallerBound(ctx context.Context, waiting store.Candidate) *store.CallerBound {
	c.ledger.Lock()
	defer c.ledger.Unlock()
	return c.explainer.readCallerBound(ctx, waiting)
}

// firstTaskPerBatch returns the first task of each batch, the task of the oldest batch first.
func firstTaskPerBatch(tasks []store.Candidate) []store.Candidate {
	sorted := slices.Clone(tasks)
	slices.SortStableFunc(sorted, func(a, b store.Candidate) int {
		switch {
		case decision.GoesBefore(a, b):
			return -1
		case decision.GoesBefore(b, a):
			return 1
		}
		return decision.CompareBatchAge(a, b)
	})
	return slices.CompactFunc(sorted, func(a, b store.Candidate) bool { return a.Batch == b.Batch })
}

// readOffersByDevice returns the time that is left of each offer in the pool, by device. It reads each pool once.
func (c *sharedStatusReader) readOffersByDevice(ctx context.Context, pool string) (timeLeftByDevice map[string]time.Duration) {
	return lookUpOnce(c, c.offers, pool, func() map[string]time.Duration {
		snapshot, err := c.explainer.semaphore.Snapshot(ctx, pool)
		if err != nil {
			c.explainer.log.WarnContext(ctx, "tasks explained without the offers", "pool", pool, "err", err)
		}
		offers := make(map[string]time.Duration, len(snapshot.Reserved))
		for _, o := range snapshot.Reserved {
			offers[o.Device] = o.Left
		}
		return offers
	})
}
