package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/policies"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

const (
	// maxDropRounds is the maximum number of rounds in which one attempt ends tasks that policies drop. Several rounds may be needed,
	// because one read of the device returns only some of its tasks.
	maxDropRounds = 8
	// dropRetryDelay is the time after which a device reports again if policies may drop more of its tasks.
	dropRetryDelay = time.Second
)

// grantUnderPolicies grants one of the tasks whose policies allow a start. All tasks belong to one pool. The policies are checked before a slot
// is acquired, so that the check occupies no slot. The check reserves a start for each task that passes. After the claim, SettleReservations
// counts the start of the granted task and releases the other reservations.
func (a *grantAttempt) grantUnderPolicies(ctx context.Context, tasks []store.Candidate) error {
	if !policies.AnyHasPolicies(tasks) {
		return a.grantOneOf(ctx, tasks)
	}
	pool := tasks[0].Pool
	passed, reserved, refused := a.d.Policies.ReserveStarts(ctx, a.reporter.view, tasks, a.leaseID, a.nonce)
	maps.Copy(a.obstacles, refused)
	suppressed := a.suppressDroppedTasks(ctx, tasks, refused)
	if len(passed) == 0 {
		return a.recordPoolWithoutAllowedTask(ctx, pool, suppressed)
	}
	a.committedLease = ""
	err := a.grantOneOf(ctx, passed)
	if !certainlyChangedNothing(err) { // the pass "limits" later finds whether the claim took effect
		a.d.Policies.RecordUncountedStarts(pool, reserved)
	} else {
		a.d.Policies.SettleReservations(ctx, pool, a.committedLease, reserved)
	}
	return err
}

// suppressDroppedTasks ends each candidate that a policy drops. A dropped task never starts. obstaclesByTask holds the obstacles that policies
// found, by task id. mustReread is true if the device must be read again, because candidates were ended. A candidate that cannot be ended now
// is refused until the device reports again.
func (a *grantAttempt) suppressDroppedTasks(ctx context.Context, candidates []store.Candidate, obstaclesByTask map[int64]decision.Obstacle) (mustReread bool) {
	var tasks []store.Candidate
	var list []store.Suppression
	for _, c := range candidates {
		if o := obstaclesByTask[c.Task]; o.DropsTask {
			tasks, list = append(tasks, c), append(list, store.Suppression{Task: c.Task, Reason: o.Detail})
			o.Until = a.reporter.view.Now.Add(dropRetryDelay)
			a.obstacles[c.Task] = o
		}
	}
	if len(list) == 0 {
		return false
	}
	if a.dropRounds++; a.dropRounds > maxDropRounds {
		a.mayHaveMoreDrops = true
		return false
	}
	ended, err := a.d.ledgerCalls.suppressions.Do(ctx, struct{}{}, list)
	if err != nil {
		a.mayHaveMoreDrops = true
		a.d.log.WarnContext(ctx, "tasks that policies drop not ended; they are ended later", "pool", tasks[0].Pool, "err", err)
		return false
	}
	for i, c := range tasks {
		if ended[i] {
			a.d.Policies.CountSuppressedTask(c.Pool, obstaclesByTask[c.Task].Policy)
		}
	}
	return true
}

// recordPoolWithoutAllowedTask records a pool in which policies let no task of the device start. If hasSuppressedTasks is true, tasks of the
// pool have just been ended. Then recordPoolWithoutAllowedTask reads the device again, and records the pool only if the device has no other
// task in it.
func (a *grantAttempt) recordPoolWithoutAllowedTask(ctx context.Context, pool string, hasSuppressedTasks bool) error {
	if hasSuppressedTasks {
		if err := a.reporter.rereadView(ctx); err != nil {
			return err
		}
	}
	if !hasSuppressedTasks || !slices.Contains(a.reporter.taskPools(), pool) {
		a.limitedPools = append(a.limitedPools, pool)
	}
	return errObstacleRecorded
}

// grantOneOf acquires a slot for one of tasks, and commits the grant. All tasks belong to one pool, and the semaphore chooses the task whose
// turn it is. If grantOneOf returns errObstacleRecorded or errRepaired, another decision may succeed.
func (a *grantAttempt) grantOneOf(ctx context.Context, tasks []store.Candidate) error {
	started := a.d.config.Now()
	tasks = drawFirstTaskPerBatch(tasks, a.d.config.Jitter)
	pool, device := tasks[0].Pool, string(a.reporter.caller.Device)
	wants := newSlotWants(tasks, a.d.config.UrgentShare)
	for i, c := range tasks {
		wants[i].Lease = a.leaseID(c)
	}
	request := slots.Request{Device: device, Wants: wants, Chance: a.d.config.Jitter(), Reach: a.reporter.reach()}
	got, err := a.d.Waiters.Slots.Acquire(ctx, pool, a.reporter.maxParkTime(), request)
	a.d.outages.semaphore.recordCall(err, started)
	if err != nil {
		return fmt.Errorf("acquiring a slot of pool %s: %w", pool, err)
	}
	a.steps.RecordStep("acquired", a.d.config.Now())
	switch got.Status {
	case slots.StatusUnknown:
		if err := a.d.Upkeep.RestorePool(ctx, pool); err != nil {
			return err
		}
		return errRepaired
	case slots.StatusFull:
		if a.untilTurn == 0 || got.AskAfter < a.untilTurn { // the earliest time, if several pools are full
			a.untilTurn = got.AskAfter
		}
		a.d.Waiters.Pools.RecordWaitingDevice(pool)
		a.full[pool] = true
		return errObstacleRecorded
	}
	c, lease := tasks[got.WantIndex], request.Wants[got.WantIndex].Lease
	claim := store.Claim{Task: c.Task, Device: device, Pool: pool, Slot: got.Slot, LeaseID: lease}
	return a.claim(ctx, c, acquiredSlot{claim, started})
}

// drawFirstTaskPerBatch returns the first task of each batch, because the semaphore needs no other tasks. If there are more than slots.MaxWants
// batches, it drops batches at random. It drops urgent batches only if no other batches are left. jitter returns a number in [0,1).
func drawFirstTaskPerBatch(tasks []store.Candidate, jitter func() float64) []store.Candidate {
	indexByBatch := make(map[int64]int)
	var firsts []store.Candidate
	for _, c := range tasks {
		i, found := indexByBatch[c.Batch]
		if !found {
			i, indexByBatch[c.Batch] = len(firsts), len(firsts)
			firsts = append(firsts, c)
		}
		if decision.GoesBefore(c, firsts[i]) {
			firsts[i] = c
		}
	}
	dropped := max(len(firsts)-slots.MaxWants, 0)
	if dropped == 0 {
		return firsts
	}
	slices.SortStableFunc(firsts, decision.CompareUrgentLast)
	normal := len(firsts) // the batches that may be drawn
	for normal > dropped && firsts[normal-1].Urgent {
		normal--
	}
	for i := range dropped {
		other := i + int(jitter()*float64(normal-i))
		firsts[i], firsts[other] = firsts[other], firsts[i]
	}
	return firsts[dropped:]
}

// newSlotWants converts tasks to requests for a slot, without lease ids. urgentPercent is the percentage of a pool's slots for which urgent
// batches go first.
func newSlotWants(tasks []store.Candidate, urgentPercent int) []slots.Want {
	wants := make([]slots.Want, len(tasks))
	for i, c := range tasks {
		wants[i] = slots.Want{TTL: c.Lease, Batch: c.Batch, Weight: c.Weight, Priority: c.Priority, Task: c.Task}
		if c.Urgent {
			wants[i].LanePercent = urgentPercent
		}
	}
	return wants
}

func (a *grantAttempt) leaseID(task store.Candidate) string { return decision.LeaseID(task, a.nonce) }

// claim commits the grant of slot to task. If the commit fails, claim gives the slot back. If the answer to the COMMIT is lost, claim keeps
// the slot. Then the next report finds the grant, or reconciliation frees the slot.
func (a *grantAttempt) claim(ctx context.Context, task store.Candidate, slot acquiredSlot) error {
	got, err := a.d.ledgerCalls.claim(ctx, slot)
	a.steps.RecordStep("claimed", a.d.config.Now())
	if err == nil && got.late {
		err = fmt.Errorf("the slot was acquired more than %s ago: too late to claim it", claimAge)
	}
	if err != nil {
		if certainlyChangedNothing(err) {
			a.d.Waiters.Slots.ReleaseEndedLeases(ctx, slot.Pool, slot.LeaseID)
		}
		return fmt.Errorf("claiming a slot of pool %s: %w", slot.Pool, err)
	}
	switch got.Status {
	case store.ClaimGranted:
		a.committedLease = slot.LeaseID
		a.d.metrics.countGrant(task, a.reporter.view)
		a.setGrantIfUsable(got.Grant)
		return nil
	case store.ClaimConflict:
		a.d.metrics.countClaimConflict(slot.Pool)
		a.d.Waiters.Slots.ReleaseEndedLeases(ctx, slot.Pool, slot.LeaseID)
		if _, err := a.d.Upkeep.ReconcilePool(ctx, slot.Pool); err != nil {
			return err
		}
	default:
		a.d.Waiters.Slots.ReleaseEndedLeases(ctx, slot.Pool, slot.LeaseID)
	}
	return a.decideAgain(ctx)
}

// redeliverGrant delivers the grant of the device again. It returns errRepaired if the grant has ended since it was read.
func (a *grantAttempt) redeliverGrant(ctx context.Context) error {
	held := *a.reporter.view.Grant
	if a.d.usableLeaseTime(held) < a.d.config.LeaseMin { // too short to be counted as a delivery
		a.setGrantIfUsable(held)
		return nil
	}
	g, err := a.d.config.Store.Redeliver(ctx, held.Task, held.Token)
	if errors.Is(err, store.ErrNotFound) {
		return a.decideAgain(ctx)
	}
	if err != nil {
		return fmt.Errorf("redelivering a grant of pool %s: %w", held.Pool, err)
	}
	a.setGrantIfUsable(g)
	return nil
}
