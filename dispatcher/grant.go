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
	// mostDrops is the maximum number of times that one attempt ends tasks that policies drop. A device may
	// have more such tasks than one view shows.
	mostDrops = 8
	// dropsAgain is the time after which a device that may have more such tasks reports again.
	dropsAgain = time.Second
)

// grantWithin grants one of the open tasks, if the policies of the task let it start. It checks the policies
// before it acquires a slot, so that no slot is occupied during the check.
func (a *attempt) grantWithin(ctx context.Context, open []store.Candidate) error {
	if !policies.Limited(open) {
		return a.grant(ctx, open)
	}
	pool := open[0].Pool
	passed, reserved, refused := a.d.Policies.Reserve(ctx, a.from.view, open, a.lease, a.nonce)
	maps.Copy(a.limited, refused)
	suppressed := a.suppress(ctx, open, refused)
	if len(passed) == 0 {
		return a.shutPool(ctx, pool, suppressed)
	}
	a.committed = ""
	err := a.grant(ctx, passed)
	if !hadNoEffect(err) { // the pass "limits" later finds whether the claim took effect
		a.d.Policies.Uncounted(pool, reserved)
	} else {
		a.d.Policies.Settle(ctx, pool, a.committed, reserved)
	}
	return err
}

// suppress ends the refused tasks whose policies drop refused tasks. It reports whether the ledger answered:
// then the device must be read again. A task that cannot be ended now is refused until the device reports
// again.
func (a *attempt) suppress(ctx context.Context, open []store.Candidate, refused map[int64]decision.Obstacle) bool {
	var tasks []store.Candidate
	var list []store.Suppression
	for _, c := range open {
		if o := refused[c.Task]; o.Drops {
			tasks, list = append(tasks, c), append(list, store.Suppression{Task: c.Task, Reason: o.Detail})
			o.Until = a.from.view.Now.Add(dropsAgain)
			a.limited[c.Task] = o
		}
	}
	if len(list) == 0 {
		return false
	}
	if a.drops++; a.drops > mostDrops {
		a.more = true
		return false
	}
	ended, err := a.d.together.suppressions.Do(ctx, struct{}{}, list)
	if err != nil {
		a.more = true
		a.d.log.WarnContext(ctx, "tasks that policies drop are ended later", "pool", tasks[0].Pool, "err", err)
		return false
	}
	for i, c := range tasks {
		if ended[i] {
			a.d.Policies.Suppressed(c.Pool, refused[c.Task].Policy)
		}
	}
	return true
}

// shutPool records a pool in which policies let no task start. If suppressed is true, it records the pool
// only if the device has no task left in it: otherwise the remaining tasks are decided next.
func (a *attempt) shutPool(ctx context.Context, pool string, suppressed bool) error {
	if suppressed {
		if err := a.from.lookAgain(ctx); err != nil {
			return err
		}
	}
	if !suppressed || !slices.Contains(a.from.pools(), pool) {
		a.shut = append(a.shut, pool)
	}
	return errNoted
}

// grant acquires a slot of the tasks' pool for the task whose turn it is, and claims that task on the
// slot. It returns errNoted or errRepaired if another decision may succeed.
func (a *attempt) grant(ctx context.Context, open []store.Candidate) error {
	started := a.d.config.Now()
	open = firstTasks(open, a.d.config.Jitter)
	pool, device := open[0].Pool, string(a.from.caller.Device)
	request := slots.Request{Device: device, Wants: a.wants(open), Chance: a.d.config.Jitter(), Reach: a.from.reach()}
	got, err := a.d.Waiters.Slots.Acquire(ctx, pool, a.from.reportPeriod(), request)
	a.d.away.semaphore.saw(err, started)
	if err != nil {
		return fmt.Errorf("acquiring a slot of pool %s: %w", pool, err)
	}
	a.steps.Done("acquired", a.d.config.Now())
	switch got.Status {
	case slots.StatusUnknown:
		if err := a.d.Upkeep.MakeKnown(ctx, pool); err != nil {
			return err
		}
		return errRepaired
	case slots.StatusFull:
		if a.turn == 0 || got.After < a.turn { // the earliest time, if several pools are full
			a.turn = got.After
		}
		a.d.Waiters.Pools.Wait(pool)
		a.full[pool] = true
		return errNoted
	}
	c, lease := open[got.Want], request.Wants[got.Want].Lease
	claim := store.Claim{Task: c.Task, Device: device, Pool: pool, Slot: got.Slot, Lease: lease}
	return a.claim(ctx, c, acquired{claim, started})
}

// firstTasks returns the first task of each batch, which alone decides the turn of the batch. If there
// are more batches than the semaphore takes, it keeps the urgent batches and draws the rest at random. jitter
// returns a number in [0,1).
func firstTasks(open []store.Candidate, jitter func() float64) []store.Candidate {
	of := make(map[int64]int)
	var firsts []store.Candidate
	for _, c := range open {
		i, known := of[c.Batch]
		if !known {
			i, of[c.Batch] = len(firsts), len(firsts)
			firsts = append(firsts, c)
		}
		if decision.Sooner(c, firsts[i]) {
			firsts[i] = c
		}
	}
	dropped := max(len(firsts)-slots.MaxWants, 0)
	if dropped == 0 {
		return firsts
	}
	slices.SortStableFunc(firsts, decision.UrgentLast)
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

// laneOf returns the part of a pool, in percent, for which the batch of a task goes before all other batches.
// It is urgentShare for an urgent batch, else 0.
func laneOf(c store.Candidate, urgentShare int) int {
	if c.Urgent {
		return urgentShare
	}
	return 0
}

// wants returns the tasks as the semaphore orders them.
func (a *attempt) wants(open []store.Candidate) []slots.Want {
	wants := make([]slots.Want, len(open))
	for i, c := range open {
		wants[i] = slots.Want{
			Lease: a.lease(c), TTL: c.Lease,
			Batch: c.Batch, Weight: c.Weight, Lane: laneOf(c, a.d.config.UrgentShare), Priority: c.Priority, Task: c.Task,
		}
	}
	return wants
}

// lease returns the lease id that task c gets if this attempt is granted the task.
func (a *attempt) lease(c store.Candidate) string { return decision.LeaseID(c, a.nonce) }

// claim commits the grant. If the claim fails, it gives the slot back. If the answer to the COMMIT is lost, it
// keeps the slot: if the COMMIT took effect, the next report finds the grant, else reconciliation frees the slot.
func (a *attempt) claim(ctx context.Context, c store.Candidate, claim acquired) error {
	got, err := a.d.together.claim(ctx, claim)
	a.steps.Done("claimed", a.d.config.Now())
	if err == nil && got.late {
		err = fmt.Errorf("the slot came more than %s ago: too late", claimAge)
	}
	if err != nil {
		if hadNoEffect(err) {
			a.d.Waiters.Slots.Return(ctx, claim.Pool, claim.Lease)
		}
		return fmt.Errorf("claiming a slot of pool %s: %w", claim.Pool, err)
	}
	switch got.Status {
	case store.ClaimGranted:
		a.committed = claim.Lease
		a.d.metrics.granted(c, a.from.view)
		a.grantUsable(got.Grant)
		return nil
	case store.ClaimConflict:
		a.d.metrics.conflicted(claim.Pool)
		a.d.Waiters.Slots.Return(ctx, claim.Pool, claim.Lease)
		if _, err := a.d.Upkeep.ReconcilePool(ctx, claim.Pool); err != nil {
			return err
		}
	default:
		a.d.Waiters.Slots.Return(ctx, claim.Pool, claim.Lease)
	}
	return a.decideAgain(ctx)
}

// redeliver delivers the grant that the device holds once more, because the first reply was lost. It returns
// errRepaired if the grant has ended since it was read.
func (a *attempt) redeliver(ctx context.Context) error {
	held := *a.from.view.Grant
	if a.d.usable(held) < a.d.config.LeaseMin { // too short to be counted as a delivery
		a.grantUsable(held)
		return nil
	}
	g, err := a.d.config.Store.Redeliver(ctx, held.Task, held.Token)
	if errors.Is(err, store.ErrNotFound) {
		return a.decideAgain(ctx)
	}
	if err != nil {
		return fmt.Errorf("redelivering a grant of pool %s: %w", held.Pool, err)
	}
	a.grantUsable(g)
	return nil
}
