package limits

import (
	"context"
	"time"
)

// Count settles checks of a pool whose starts happened. If a check has a reservation, its start is counted at the time of the reservation. If a
// check has none, its start is counted at the time `age` ago. Counting a check again within a minute has no effect.
func (r *Reservations) Count(ctx context.Context, pool string, checks []Check, age time.Duration) error {
	return r.settleChecks(ctx, pool, newSettlements(checks, true, age))
}

// Release settles checks of a pool whose starts did not happen. It gives their reservations back.
func (r *Reservations) Release(ctx context.Context, pool string, checks []Check) error {
	return r.settleChecks(ctx, pool, newSettlements(checks, false, 0))
}

// Settle counts the start of one check (started), and releases its alternatives, which did not start (others), in one atomic step.
func (r *Reservations) Settle(ctx context.Context, pool string, started Check, others []Check) error {
	return r.settleChecks(ctx, pool, append(newSettlements([]Check{started}, true, 0), newSettlements(others, false, 0)...))
}

// Overdue returns the lease ids of at most 1000 reservations that have been open for longer than SettleWithin, oldest first. The process that
// made such a reservation may have ended. The caller must find out whether the start of each reservation happened, and then settle the
// reservation with Count or Release and an empty Group.
func (r *Reservations) Overdue(ctx context.Context, pool string) (leaseIDs []string, err error) {
	if err := checkScope(pool); err != nil {
		return nil, err
	}
	cmd, err := r.conn.runScript(ctx, r.overdue, pool, scopeKeys(pool, 0), []any{1000})
	if err != nil {
		return nil, err
	}
	return cmd.StringSlice()
}

// settlement is a check to settle. started says whether its start happened, and ago is the time since the start.
type settlement struct {
	Check

	started bool
	ago     time.Duration
}

func newSettlements(checks []Check, hasStarted bool, age time.Duration) []settlement {
	all := make([]settlement, len(checks))
	for i, c := range checks {
		all[i] = settlement{c, hasStarted, age}
	}
	return all
}

func (r *Reservations) settleChecks(ctx context.Context, pool string, settlements []settlement) error {
	if err := validateAll(pool, settlements); err != nil || len(settlements) == 0 {
		return err
	}
	if _, err := r.settleCalls.ask(ctx, callKey{scope: pool}, settlements); err != nil {
		return err
	}
	for _, s := range settlements {
		for _, item := range s.Items {
			if s.started {
				r.uses.recordUse(pool, item, 0)
			}
		}
	}
	return nil
}

// settleAll sends the settlements in chunks. It returns one empty answer for each settlement, because a coalescer requires one answer for each
// question.
func (r *Reservations) settleAll(ctx context.Context, key callKey, settlements []settlement) ([]struct{}, error) {
	return sendInChunks(settlements, func(part []settlement) ([]struct{}, error) { return r.sendSettlements(ctx, key.scope, part) })
}

func (r *Reservations) sendSettlements(ctx context.Context, pool string, settlements []settlement) ([]struct{}, error) {
	keys, args := r.encodeSettlements(pool, settlements)
	reply, err := r.conn.runScriptForNumbers(ctx, maxSends, r.settle, pool, keys, args)
	if err != nil {
		return nil, err
	}
	if len(reply) != 1+len(settlements) {
		return nil, errNoPeriod
	}
	return make([]struct{}, len(settlements)), nil
}

func (r *Reservations) encodeSettlements(pool string, settlements []settlement) (keys, args []any) {
	now := r.conn.clock.now()
	keys, args = scopeKeys(pool, 2*len(settlements)), make([]any, 0, 6*len(settlements))
	for _, s := range settlements {
		started := 0
		if s.started {
			started = 1
		}
		args = append(args, s.Lease, s.Group, started, max(s.ago.Milliseconds(), 0), len(s.Items))
		keys, args = appendItems(keys, args, pool, s.Items, now)
	}
	return keys, args
}
