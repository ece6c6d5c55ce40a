package limits

import (
	"context"
	"time"
)

// Count settles checks of a pool whose starts happened. A check with a reservation is counted at the time of its reservation. A check
// without a reservation is counted as a start that happened earlier, by the duration ago. If a check is counted again within a minute, the
// second call has no effect.
func (r *Reservations) Count(ctx context.Context, pool string, checks []Check, ago time.Duration) error {
	return r.settleChecks(ctx, pool, newSettlements(checks, true, ago))
}

// Release settles checks of a pool whose starts did not happen. It gives their reservations back and counts nothing.
func (r *Reservations) Release(ctx context.Context, pool string, checks []Check) error {
	return r.settleChecks(ctx, pool, newSettlements(checks, false, 0))
}

// Settle settles a group of alternatives (checks of which at most one starts) in one step. It counts the check in the parameter started,
// and releases the checks in others.
func (r *Reservations) Settle(ctx context.Context, pool string, started Check, others []Check) error {
	return r.settleChecks(ctx, pool, append(newSettlements([]Check{started}, true, 0), newSettlements(others, false, 0)...))
}

// Overdue returns the lease ids of reservations of a pool that have been open for longer than SettleWithin, oldest first, at most 1000. The
// process that made such a reservation may have ended. Find out which of them started, and settle all of them with Count or Release, with
// an empty Group.
func (r *Reservations) Overdue(ctx context.Context, pool string) ([]string, error) {
	if err := checkScope(pool); err != nil {
		return nil, err
	}
	cmd, err := r.conn.run(ctx, r.overdue, pool, scopeKeys(pool, 0), []any{1000})
	if err != nil {
		return nil, err
	}
	return cmd.StringSlice()
}

// settlement is a check to settle. started says whether its start happened, and ago how long ago.
type settlement struct {
	Check

	started bool
	ago     time.Duration
}

// newSettlements returns a settlement for each of checks, all with the same values of started and ago.
func newSettlements(checks []Check, started bool, ago time.Duration) []settlement {
	all := make([]settlement, len(checks))
	for i, c := range checks {
		all[i] = settlement{c, started, ago}
	}
	return all
}

// settleChecks settles checks of a pool, together with the settlements of other callers.
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
				r.uses.record(pool, item, 0)
			}
		}
	}
	return nil
}

// settleAll settles the settlements of many callers in chunks. All of them are of the scope in key.
func (r *Reservations) settleAll(ctx context.Context, key callKey, settlements []settlement) ([]struct{}, error) {
	return sendInChunks(settlements, func(part []settlement) ([]struct{}, error) { return r.settleOnce(ctx, key.scope, part) })
}

// settleOnce sends settlements of a pool in one call of the script.
func (r *Reservations) settleOnce(ctx context.Context, pool string, settlements []settlement) ([]struct{}, error) {
	keys, args := r.encodeSettlements(pool, settlements)
	cmd, err := r.conn.run(ctx, r.settle, pool, keys, args)
	if err != nil {
		return nil, err
	}
	reply, err := readNumbers(pool, cmd)
	if err != nil {
		return nil, err
	}
	if r.clock.adjust(reply[0]); len(reply) != 1+len(settlements) {
		return nil, errNoPeriod
	}
	return make([]struct{}, len(settlements)), nil
}

// encodeSettlements returns the keys and arguments of lua/settle.lua for settlements of a pool.
func (r *Reservations) encodeSettlements(pool string, settlements []settlement) (keys, args []any) {
	now := r.clock.now()
	keys, args = append(make([]any, 0, 3+2*len(settlements)), sharedKeys(pool, settlements[0].Check)...), make([]any, 0, 6*len(settlements))
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
