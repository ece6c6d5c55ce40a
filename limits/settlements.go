package limits

import (
	"context"
	"time"
)

// Count settles checks whose starts happened. A check with a reservation is counted at the time of its
// reservation. A check without one is counted at the time now - ago. If a check is counted again within a
// minute, the repetition has no effect.
func (r *Reservations) Count(ctx context.Context, scope string, checks []Check, ago time.Duration) error {
	return r.settleChecks(ctx, scope, newSettlements(checks, true, ago))
}

// Release settles checks whose starts did not happen: their reservations are given back and nothing is
// counted.
func (r *Reservations) Release(ctx context.Context, scope string, checks []Check) error {
	return r.settleChecks(ctx, scope, newSettlements(checks, false, 0))
}

// Settle settles a group of alternatives in one step: it counts the check that started and releases the
// others.
func (r *Reservations) Settle(ctx context.Context, scope string, started Check, others []Check) error {
	return r.settleChecks(ctx, scope, append(newSettlements([]Check{started}, true, 0), newSettlements(others, false, 0)...))
}

// Overdue returns the lease ids of at most 1000 overdue reservations (open for longer than SettleWithin),
// oldest first. The process that made them may have ended. Find out which of them started, and settle all of
// them with Count or Release, with an empty Group.
func (r *Reservations) Overdue(ctx context.Context, scope string) ([]string, error) {
	if err := checkScope(scope); err != nil {
		return nil, err
	}
	cmd, err := r.conn.run(ctx, r.overdue, scope, scopeKeys(scope, 0), []any{1000})
	if err != nil {
		return nil, err
	}
	return cmd.StringSlice()
}

// settlement is a check to settle, with the information whether it started, and how long ago.
type settlement struct {
	Check

	started bool
	ago     time.Duration
}

func newSettlements(checks []Check, started bool, ago time.Duration) []settlement {
	all := make([]settlement, len(checks))
	for i, c := range checks {
		all[i] = settlement{c, started, ago}
	}
	return all
}

func (r *Reservations) settleChecks(ctx context.Context, scope string, all []settlement) error {
	if err := validateAll(scope, all); err != nil || len(all) == 0 {
		return err
	}
	if _, err := r.settleCalls.ask(ctx, callKey{scope: scope}, all); err != nil {
		return err
	}
	for _, s := range all {
		for _, item := range s.Items {
			if s.started {
				r.uses.record(scope, item, 0)
			}
		}
	}
	return nil
}

func (r *Reservations) settleAll(ctx context.Context, key callKey, all []settlement) ([]struct{}, error) {
	return sendInChunks(all, func(part []settlement) ([]struct{}, error) { return r.settleOnce(ctx, key.scope, part) })
}

func (r *Reservations) settleOnce(ctx context.Context, scope string, all []settlement) ([]struct{}, error) {
	keys, args := r.encodeSettlements(scope, all)
	cmd, err := r.conn.run(ctx, r.settle, scope, keys, args)
	if err != nil {
		return nil, err
	}
	if _, isShort := cmd.Val().(int64); !isShort { // a single number would be a reply of lua/quick_settle.lua
		reply, err := readNumbers(scope, cmd)
		if err != nil {
			return nil, err
		}
		if r.clock.adjust(reply[0]); len(reply) != 1+len(all) {
			return nil, errNoPeriod
		}
	}
	return make([]struct{}, len(all)), nil
}

// encodeSettlements returns the keys and arguments of lua/settle.lua for all.
func (r *Reservations) encodeSettlements(scope string, all []settlement) (keys, args []any) {
	now := r.clock.now()
	keys, args = append(make([]any, 0, 3+2*len(all)), sharedKeys(scope, all[0].Check)...), make([]any, 0, 6*len(all))
	for _, s := range all {
		started := 0
		if s.started {
			started = 1
		}
		args = append(args, s.Lease, s.Group, started, max(s.ago.Milliseconds(), 0), len(s.Items))
		keys, args = appendItems(keys, args, scope, s.Items, now)
	}
	return keys, args
}
