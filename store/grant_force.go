package store

import (
	"context"
	"fmt"
)

// Force describes how an operator takes a slot back from its holder.
type Force struct {
	Actor  string
	Reason string // for the audit log
	Token  int64  // token of the grant to end; 0 means the grant that holds the slot now
	Now    bool   // end the grant at once, even though the device may continue until its lease ends
}

// ForceRelease takes a slot back and returns its grant. If f.Now is false, the device is asked to stop, as for a cancelled task, and the
// slot becomes free when its result arrives or its lease ends. If f.Now is true, the grant ends at once. It returns ErrNotFound if nobody
// holds the slot, or the grant has another token.
func (s grants) ForceRelease(ctx context.Context, pool string, slot int, f Force, settle Settle) (Grant, error) {
	var released Grant
	err := s.write(ctx, func(tx session) error {
		task, err := one(ctx, tx, only[int64], `SELECT g.task FROM grants g WHERE g.pool = $1 AND g.slot = $2`, pool, slot)
		if err != nil {
			return err
		}
		e, err := tx.grants().holding(ctx, task, pool, slot)
		if err != nil {
			return err
		}
		if f.Token != 0 && f.Token != e.grant.Token {
			return ErrNotFound
		}
		released = e.grant
		released.CancelWhy = cancelled
		return tx.grants().force(ctx, f, e, settle)
	})
	if err != nil {
		return Grant{}, fmt.Errorf("releasing slot %d of pool %s: %w", slot, pool, err)
	}
	return released, nil
}

// holding locks the task and then its grant. It returns ErrNotFound if the task no longer holds this slot.
func (s grantsIn) holding(ctx context.Context, task int64, pool string, slot int) (ending, error) {
	of, err := one(ctx, s.session, subjectDest,
		`SELECT `+subjectColumns+` FROM tasks t JOIN batches b ON b.id = t.batch WHERE t.id = $1 {lock t}`, task)
	if err != nil {
		return ending{}, err
	}
	grant, err := one(ctx, s.session, grantDest,
		`SELECT `+heldColumns+` FROM grants g WHERE g.task = $1 AND g.pool = $2 AND g.slot = $3 {lock}`, task, pool, slot)
	return ending{task: of, grant: grant}, err
}

func (s grantsIn) force(ctx context.Context, f Force, e ending, settle Settle) error {
	kind := "slot.release_asked"
	if f.Now {
		kind = "slot.released"
	}
	g := e.grant
	if err := s.record(ctx, Event{
		Kind: kind, Actor: f.Actor, Pool: g.Pool, Batch: g.Batch, Task: g.Task, Device: g.Device, Token: g.Token,
		Detail: fmt.Sprintf("slot=%d because: %s", g.Slot, f.Reason),
	}); err != nil {
		return err
	}
	if !f.Now {
		_, err := s.exec(ctx, `UPDATE grants SET cancel_why = '`+cancelled+`' WHERE task = $1`, g.Task)
		return err
	}
	e.grant.CancelWhy, e.cause, e.actor = cancelled, ByOperator, f.Actor
	e.settle(settle, 0)
	e.event = "task." + string(e.settled.State)
	return s.end(ctx, []ending{e})
}

// GrantByToken returns the grant in a pool with this token if its lease has not ended; otherwise ErrNotFound.
func (s grants) GrantByToken(ctx context.Context, pool string, token int64) (Grant, error) {
	return one(ctx, s.read(), grantDest,
		`SELECT `+grantColumns+` FROM `+grantTables+` WHERE g.pool = $1 AND g.token = $2 AND g.lease_until > {now}`, pool, token)
}
