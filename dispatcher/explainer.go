package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/marks"
	"github.com/fleetslots/dispatcher/dispatcher/policies"
	"github.com/fleetslots/dispatcher/dispatcher/seen"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/internal/deadline"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// Explainer explains why tasks wait, and changes nothing. It is safe for concurrent use.
type Explainer struct {
	ledger      explanationLedger
	semaphore   Semaphore
	views       *viewCalls
	policies    *policies.Checker
	pools       *waiters.Pools
	seen        *seen.Devices
	marks       *marks.Follower // nil if devices have no marks
	period      time.Duration   // report period of an idle device
	urgentShare int             // percent of a pool's slots for which urgent batches go before all other batches
	log         *slog.Logger
	panicked    rescue.PanicHandler
}

// ExplainTask explains why the task with this id waits. If the task runs or has ended, ExplainTask describes the run or the end. The
// explanation covers the queue and the policies only if Redis answers in time. ExplainTask returns store.ErrNotFound if there is no such
// task.
func (x *Explainer) ExplainTask(ctx context.Context, taskID int64) (decision.Explanation, error) {
	v, err := x.ledger.TaskView(ctx, taskID)
	var e decision.Explanation
	if err == nil {
		e, err = x.explainInTime(ctx, v)
	}
	if err != nil {
		return decision.Explanation{}, fmt.Errorf("explaining task %d: %w", taskID, err)
	}
	if !store.IsCaller(v.Task.Device) {
		e.Mark = x.DeviceMark(ctx, devices.ID(v.Task.Device))
	}
	return e, nil
}

// ExplainDevice explains the task that the device runs. If the device runs no task, ExplainDevice explains the task that the device would
// get first. taskID is 0 if the device has no open task. ExplainDevice returns store.ErrNotFound if the device is not registered.
func (x *Explainer) ExplainDevice(ctx context.Context, device devices.ID) (taskID int64, explanation decision.Explanation, err error) {
	views, err := x.ledger.DeviceViews(ctx, []string{string(device)}) // x.views refuses calls with little time left
	if err == nil && views[0].Device == nil {
		err = store.ErrNotFound
	}
	if err != nil {
		return 0, explanation, fmt.Errorf("explaining device %s: %w", device, err)
	}
	if taskID = decision.FirstTask(views[0]); taskID != 0 {
		explanation, err = x.ExplainTask(ctx, taskID)
	}
	return taskID, explanation, err
}

// explainInTime explains the view's task. If Redis does not answer in time, it uses the ledger alone.
func (x *Explainer) explainInTime(ctx context.Context, view store.TaskView) (decision.Explanation, error) {
	within, cancel := deadline.Share(ctx, evaluationTimeShare)
	defer cancel()
	explained := make(chan decision.Explanation, 1)
	err := rescue.CallWithin(within, func() error {
		explained <- x.explain(within, view, x.policies.FindObstacles(within, []store.TaskView{view})[0], x)
		return nil
	})
	switch {
	case within.Err() != nil:
		return x.explain(ctx, view, nil, unavailableStatus{}), ctx.Err()
	case err != nil:
		return decision.Explanation{}, x.panicked.Report("explaining a task", err)
	}
	return <-explained, nil
}

// statusReader reads facts for the explanation of a task that its TaskView does not contain: how full a pool is, and how many slots callers
// hold.
type statusReader interface {
	// readPoolStatus returns how full a pool is, and the place of the device in its queue. The tasks belong to the view's device.
	readPoolStatus(ctx context.Context, pool string, tasks []store.Candidate, view store.TaskView) decision.PoolStatus
	// readCallerBound returns how many slots callers hold and may hold in the pool of a waiting caller, or nil if this is unknown.
	readCallerBound(ctx context.Context, waiting store.Candidate) *store.CallerBound
}

// unavailableStatus implements statusReader without a call: every fact is unknown.
type unavailableStatus struct{}

func (unavailableStatus) readCallerBound(context.Context, store.Candidate) *store.CallerBound {
	return nil
}

func (unavailableStatus) readPoolStatus(context.Context, string, []store.Candidate, store.TaskView) decision.PoolStatus {
	return decision.PoolStatus{Unreachable: true}
}

// explain explains the view's task. obstaclesByTask holds the obstacles that policies found, by task id. reader reads the other facts.
func (x *Explainer) explain(ctx context.Context, view store.TaskView, obstaclesByTask map[int64]decision.Obstacle, reader statusReader) decision.Explanation {
	return decision.Explain(view, func(waiting store.Candidate) decision.WaitFacts {
		facts := decision.WaitFacts{
			PoolStatuses: readPoolStatuses(ctx, view, waiting, obstaclesByTask, reader), Obstacles: obstaclesByTask,
			Seen: x.lastReport(view), Period: x.period,
		}
		if hold, found := x.pools.UsualHoldTime(waiting.Pool); found {
			facts.Hold = hold
		}
		if store.IsCaller(view.Task.Device) {
			facts.CallerBound = reader.readCallerBound(ctx, waiting)
		}
		return facts
	})
}

func (x *Explainer) readCallerBound(ctx context.Context, waiting store.Candidate) *store.CallerBound {
	found, err := x.ledger.CallerBoundOf(ctx, waiting.Pool, waiting.Task)
	if err != nil {
		x.log.WarnContext(ctx, "task explained without the maximum number of slots for callers", "pool", waiting.Pool, "err", err)
		return nil
	}
	return &found
}

// markShare is the part of the remaining time of a request that DeviceMark may take.
const markShare = 0.5

// DeviceMark returns the mark of a device in Redis, together with the information whether the ledger has work for the device. DeviceMark returns
// nil if Redis or the ledger does not answer in time. A failure does not count as an outage of the ledger.
func (x *Explainer) DeviceMark(ctx context.Context, device devices.ID) *decision.Mark {
	if x.marks == nil {
		return nil
	}
	ctx, cancel := deadline.Share(ctx, markShare)
	defer cancel()
	found := make(chan *decision.Mark, 1)
	err := rescue.CallWithin(ctx, func() error {
		defer close(found)
		view, err := x.views.Do(ctx, true, string(device))
		if err != nil {
			return err
		}
		if mark := x.marks.ReadMark(ctx, string(device)); mark.Read {
			found <- &decision.Mark{Present: mark.Version != "", Trusted: mark.Trusted, HasWork: len(view.Candidates) > 0 || view.Grant != nil}
		}
		return nil
	})
	if err != nil {
		return nil
	}
	return <-found
}

// readPoolStatuses returns, by pool name, the status of each pool in which the view's device has a task that could start. The result also has
// the status of the pool of the explained task. obstaclesByTask holds the obstacles that policies found, by task id.
func readPoolStatuses(ctx context.Context, view store.TaskView, explained store.Candidate, obstaclesByTask map[int64]decision.Obstacle, reader statusReader) (statusByPool map[string]decision.PoolStatus) {
	s := decision.ExpectedSituation(view.DeviceView, obstaclesByTask)
	open := map[string][]store.Candidate{explained.Pool: {explained}}
	for _, c := range view.Candidates {
		if c.Task != explained.Task && s.MayStart(c) && len(open[c.Pool]) < slots.MaxWants {
			open[c.Pool] = append(open[c.Pool], c)
		}
	}
	cannotStart := !s.MayStart(explained)
	statuses := make(map[string]decision.PoolStatus)
	for pool, tasks := range open {
		if pool == explained.Pool && cannotStart {
			tasks = tasks[:1]
		}
		statuses[pool] = reader.readPoolStatus(ctx, pool, tasks, view)
	}
	return statuses
}

// readPoolStatus reads from the semaphore the status of a pool, and the place of tasks[0] in its queue. If the semaphore does not know the
// pool, readPoolStatus uses the counts of the view, because the next report restores the pool from the ledger.
func (x *Explainer) readPoolStatus(ctx context.Context, pool string, tasks []store.Candidate, view store.TaskView) decision.PoolStatus {
	places, err := x.semaphore.ReadQueuePlaces(ctx, pool, view.Task.Device, newSlotWants(tasks, x.urgentShare))
	switch {
	case err != nil:
		x.log.WarnContext(ctx, "task explained without the semaphore", "pool", pool, "err", err)
		return decision.PoolStatus{Unreachable: true}
	case places.PoolKnown:
		return decision.PoolStatus{
			Held: places.Held, Capacity: places.Capacity, UnreservedSlots: places.UnreservedSlots, Position: places.Positions[0],
			FirstTask: tasks[places.FirstIndex].Task, InQueue: places.WaitingTask != 0, ReportDueIn: places.ReportDueIn, OfferLeft: places.OfferLeft,
			Waiting: places.Waiting, Lane: decision.UrgentLane(places.Lane),
		}
	case pool == view.Pool.Name:
		return decision.PoolStatus{Held: view.Held, Capacity: view.Pool.Capacity, UnreservedSlots: view.Pool.Capacity - view.Held}
	}
	return decision.PoolStatus{Capacity: 1, UnreservedSlots: 1}
}

// lastReport returns the last report of the view's device that the ledger or this replica has recorded. For a device that only polls, its time
// is accurate to store.SeenPrecision. If the device never reported, lastReport returns zero.
func (x *Explainer) lastReport(view store.TaskView) store.LastReport {
	seen := x.seen.LastReport(view.Task.Device)
	if d := view.Device; d != nil && d.LastSeen != nil && d.QuietUntil != nil && d.LastSeen.After(seen.At) {
		return store.LastReport{At: *d.LastSeen, QuietUntil: *d.QuietUntil}
	}
	return seen
}
