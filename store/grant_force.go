package store

import (
	"context"
	"fmt"
)

// ForcedRelease describes a request of an operator to take a slot back from its holder.
type ForcedRelease struct {
	Actor  string
	Reason string // for the audit log
	Token  int64  // fencing token of the grant to end; 0 means the grant that holds the slot now
	AtOnce bool   // end the grant at once, even though the device may continue until its lease ends
}

// ForceRelease takes a slot from its holder and returns the grant. If release.AtOnce is true, the grant ends at once, and decideState decides
// the state of its task. Otherwise the device is asked to stop, and keeps the slot until its result or the end of its lease. ForceRelease
// returns ErrNotFound if nobody holds the slot, or if the grant has another token than release.Token.
func (s grants) ForceRelease(ctx context.Context, pool string, slot int, release ForcedRelease, decideState DecideTaskState) (_ Grant, err error) {
	defer wrapError(&err, "releasing slot %d of pool %s", slot, pool)
	var released Grant
	err = s.write(ctx, func(tx session) error {
		task, err := queryOne(ctx, tx, singleColumn[int64], `SELECT g.task FROM grants g WHERE g.pool = $1 AND g.slot = $2`, pool, slot)
		if err != nil {
			return err
		}
		e, err := tx.lockSlotGrant(ctx, task, pool, slot)
		if err != nil {
			return err
		}
		if release.Token != 0 && release.Token != e.grant.Token {
			return ErrNotFound
		}
		released = e.grant
		released.CancelWhy = whyCancelled
		return tx.applyForcedRelease(ctx, release, e, decideState)
	})
	return released, err
}

// lockSlotGrant locks the task, then its grant. It returns ErrNotFound if the task no longer holds this slot.
func (s session) lockSlotGrant(ctx context.Context, task int64, pool string, slot int) (grantEnding, error) {
	lockedTask, err := queryOne(ctx, s, endingTaskScanDest,
		`SELECT `+endingTaskColumns+` FROM tasks t JOIN batches b ON b.id = t.batch WHERE t.id = $1 FOR UPDATE OF t`, task)
	if err != nil {
		return grantEnding{}, err
	}
	grant, err := queryOne(ctx, s, grantScanDest,
		`SELECT `+grantOnlyColumns+` FROM grants g WHERE g.task = $1 AND g.pool = $2 AND g.slot = $3 FOR UPDATE`, task, pool, slot)
	return grantEnding{task: lockedTask, grant: grant}, err
}

// applyForcedRelease ends a locked grant if release.AtOnce is true. Otherwise it asks the device of the grant to stop. decideState decides the
// state of the task.
func (s session) applyForcedRelease(ctx context.Context, release ForcedRelease, locked grantEnding, decideState DecideTaskState) error {
	kind := "slot.release_asked"
	if release.AtOnce {
		kind = "slot.released"
	}
	g := locked.grant
	if err := s.recordEvent(ctx, Event{
		Kind: kind, Actor: release.Actor, Pool: g.Pool, Batch: g.Batch, Task: g.Task, Device: g.Device, Token: g.Token,
		Detail: fmt.Sprintf("slot=%d because: %s", g.Slot, release.Reason),
	}); err != nil {
		return err
	}
	if !release.AtOnce {
		_, err := s.exec(ctx, `UPDATE grants SET cancel_why = '`+whyCancelled+`' WHERE task = $1`, g.Task)
		return err
	}
	locked.grant.CancelWhy, locked.cause, locked.actor = whyCancelled, ByOperator, release.Actor
	locked.setTaskState(decideState, 0)
	locked.event = "task." + string(locked.settlement.State)
	return s.endGrants(ctx, []grantEnding{locked})
}

// GrantByToken returns the grant in a pool with this fencing token. It returns ErrNotFound if there is no such grant, or if its lease has
// ended.
func (s grants) GrantByToken(ctx context.Context, pool string, token int64) (Grant, error) {
	return queryOne(ctx, s.readSession(), grantScanDest,
		`SELECT `+grantColumns+` FROM `+grantTables+` WHERE g.pool = $1 AND g.token = $2 AND g.lease_until > {now}`, pool, token)
}
