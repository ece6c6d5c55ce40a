package simulator

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

// maxTaskTries is the maximum number of attempts of a task. It is high, so that tasks succeed even in a fleet that loses
// many reports.
const maxTaskTries = 20

// maxBatch keeps the request that creates a batch below a megabyte.
const maxBatch = 10_000

type workload struct {
	config       Config
	lease        time.Duration // lease of the pool
	operator     *Operator
	fleet        *Fleet
	dice         dice
	batches      []*operators.Batch // the batches whose tasks were not compared with the journals yet, oldest first
	droppedTasks int64              // number of tasks of dropped batches
	planned      time.Duration      // work of all tasks queued so far
	taskWork     []time.Duration    // work of each task; empty with Config.Endless or Config.FillUntil
	queued       time.Time          // when the last batch was queued, or when its tasks may start if that is later
	batchesMade  int
	err          error // the error of the last call
}

func countEndedTasks(batch *operators.Batch) (n int64) {
	for state, count := range batch.Counts {
		if isFinalState(state) {
			n += count
		}
	}
	return n
}

func isBatchFinished(batch *operators.Batch) bool {
	return batch.Total > 0 && countEndedTasks(batch) >= batch.Total
}

func newWorkload(config Config, lease time.Duration, operator *Operator, fleet *Fleet) *workload {
	return &workload{config: config, lease: lease, operator: operator, fleet: fleet, dice: newDice(config.Seed, 0)}
}

// queueTasks adds Config.Tasks tasks, assigned to the devices in turn, in batches small enough for one request.
func (w *workload) queueTasks(ctx context.Context) error {
	for from := 0; from < w.config.Tasks; from += maxBatch {
		if err := w.createBatch(ctx, from, min(from+maxBatch, w.config.Tasks)); err != nil {
			return err
		}
	}
	return nil
}

// createBatch queues the tasks with fromTask <= index < toTask as one batch.
func (w *workload) createBatch(ctx context.Context, fromTask, toTask int) error {
	b := operators.NewBatch{
		Name: fmt.Sprintf("simulation %d", w.batchesMade+1), Pool: w.config.Pool, Kind: "simulated",
		MaxAttempts: maxTaskTries, OnLost: "retry", RetryOn: []string{operators.Failed, operators.TimedOut}, RetryBackoffMS: new(int64(100)),
	}
	if w.config.Gone > 0 {
		b.MaxAttempts = 1 // a device that is gone makes no second attempt
	}
	opens := time.Now().Add(w.config.NotBefore)
	if w.config.NotBefore > 0 {
		b.NotBefore = &opens
	}
	var planned time.Duration
	for i := fromTask; i < toTask; i++ {
		work := w.randomWorkTime()
		planned += work
		if !w.config.Endless && w.config.FillUntil == nil {
			w.taskWork = append(w.taskWork, work)
		}
		b.Tasks = append(b.Tasks, operators.NewTask{
			Device:  w.fleet.DeviceID(i % w.config.Devices),
			Payload: json.RawMessage(fmt.Sprintf(`{"work_ms":%d}`, work.Milliseconds())),
		})
	}
	made, err := w.operator.Batches.Create(ctx, b, operators.QueueMode{})
	if err != nil {
		return err
	}
	total := int64(len(b.Tasks))
	if made.Tasks != total {
		return fmt.Errorf("batch %d: %d tasks were created, want %d", made.ID, made.Tasks, total)
	}
	if w.queued = time.Now(); w.queued.Before(opens) {
		w.queued = opens
	}
	w.batchesMade++
	w.planned += planned
	w.batches = append(w.batches, &operators.Batch{ID: made.ID, Created: operators.Time{Time: w.queued}, Total: total, Counts: map[string]int64{operators.Pending: total}})
	return nil
}

// idealMakespan returns the makespan of a dispatcher that loses no time. Each task, in order, gets the slot that becomes
// free first. The task holds the slot for its work plus overhead. If starts say that the device of a task is gone, the
// task holds the slot for the length of a lease.
func (w *workload) idealMakespan(slots int, overhead time.Duration, starts []Start) time.Duration {
	free := make([]time.Duration, max(slots, 1))
	for i, work := range w.taskWork {
		if i < len(starts) && starts[i].Gone {
			work = w.lease - overhead
		}
		first := 0
		for slot := range free {
			if free[slot] < free[first] {
				first = slot
			}
		}
		free[first] += work + overhead
	}
	return slices.Max(free)
}

func (w *workload) randomWorkTime() time.Duration {
	if w.dice.happens(w.config.LongShare) {
		return w.lease * 9 / 10
	}
	return w.dice.randomAround(w.config.Work).Round(time.Millisecond)
}

// refreshCounts reads the counts of the open batches from the server. If a request fails, the counts of the remaining
// batches do not change.
func (w *workload) refreshCounts(ctx context.Context) {
	w.err = nil
	for _, b := range w.batches {
		if isBatchFinished(b) {
			continue
		}
		now, err := w.operator.Batches.Get(ctx, b.ID)
		if err != nil {
			w.err = err
			return
		}
		now.ID, now.Total, now.Created = b.ID, b.Total, b.Created // every queued task must end, even if the API reports another total
		*b = now
	}
}

// waitingTasks returns how many tasks waited for a slot at the last call of refreshCounts.
func (w *workload) waitingTasks() (n int64) {
	for _, b := range w.batches {
		n += b.Counts[operators.Pending]
	}
	return n
}

func (w *workload) isFinished() bool {
	return !slices.ContainsFunc(w.batches, func(b *operators.Batch) bool { return !isBatchFinished(b) })
}

// hasTasksWithoutResult reports whether any task ended without a result: the task neither succeeded nor failed.
func (w *workload) hasTasksWithoutResult() bool {
	return slices.ContainsFunc(w.batches, func(b *operators.Batch) bool {
		return b.Counts[operators.Succeeded]+b.Counts[operators.Failed] < b.Total
	})
}

// countTasks returns the number of all tasks and of the tasks in final states, including dropped batches.
func (w *workload) countTasks() (total, ended int64) {
	total, ended = w.droppedTasks, w.droppedTasks
	for _, b := range w.batches {
		total += b.Total
		ended += countEndedTasks(b)
	}
	return total, ended
}
