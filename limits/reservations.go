package limits

import (
	"context"
	"errors"
	"slices"
)

// These are the modes of lua/reserve.lua.
const (
	modeReserve      = "R"
	modePeekAtStarts = "P"
)

// Reservations reserves starts according to rules and settles these reservations.
type Reservations struct {
	conn        *connection
	epochs      *epochs
	uses        *useCounts
	refusals    *RefusalCounts
	checkCalls  *coalescer[Check, Answer]
	settleCalls *coalescer[settlement, struct{}]

	reserve         map[string]script // key: mode of lua/reserve.lua
	settle, overdue script
}

// Reserve evaluates the checks of starts in a pool, and reserves a start for each check that passes. It returns one answer for each check. A
// reserved start counts as used until Count or Release settles it. A check that is sent again under the same lease passes again. After an
// error, settle all leases, because each of them may have a reservation.
func (r *Reservations) Reserve(ctx context.Context, pool string, checks []Check) ([]Answer, error) {
	return r.askByMode(ctx, pool, modeReserve, checks)
}

// Peek returns the answers that Reserve would return for the checks, and changes nothing.
func (r *Reservations) Peek(ctx context.Context, pool string, checks []Check) ([]Answer, error) {
	return r.askByMode(ctx, pool, modePeekAtStarts, checks)
}

func (r *Reservations) askByMode(ctx context.Context, pool, mode string, checks []Check) ([]Answer, error) {
	if err := validateAll(pool, checks); err != nil || len(checks) == 0 {
		return nil, err
	}
	answers, err := r.checkCalls.ask(ctx, callKey{pool, mode}, checks)
	if err != nil {
		return nil, err
	}
	if mode != modePeekAtStarts && r.refusals.countRefusals(pool, checks, answers) {
		_ = r.refusals.publishScope(ctx, pool) // the counts are only for display, so an error must not fail the check
	}
	return answers, nil
}

// askAll returns the answers to checks. All answers are from one epoch of Redis. If a new epoch begins during the call, askAll asks once more.
func (r *Reservations) askAll(ctx context.Context, key callKey, checks []Check) ([]Answer, error) {
	answers, err := r.askInEpoch(ctx, key, checks)
	if errors.Is(err, errNewEpoch) {
		answers, err = r.askInEpoch(ctx, key, checks)
	}
	return answers, err
}

// askInEpoch returns the answers to checks, or errNewEpoch if Redis may have lost data during the call.
func (r *Reservations) askInEpoch(ctx context.Context, key callKey, checks []Check) ([]Answer, error) {
	epoch, err := r.epochs.currentEpoch(ctx, key.scope)
	if err != nil {
		return nil, err
	}
	if err = r.epochs.forgetOutdatedRules(ctx, key.scope, epoch, checks); err != nil {
		return nil, err
	}
	answers, err := sendInChunks(checks, func(part []Check) ([]Answer, error) { return r.sendChecks(ctx, key, part) })
	if err != nil {
		return nil, err
	}
	if err = r.epochs.requireEpoch(ctx, key.scope, epoch); err == nil {
		return answers, nil
	}
	if key.mode == modeReserve {
		_, _ = r.settleAll(ctx, key, newSettlements(checks, false, 0)) // if this fails, Overdue returns the reservations later
	}
	return nil, err
}

func (r *Reservations) sendChecks(ctx context.Context, key callKey, checks []Check) ([]Answer, error) {
	keys, args := r.encodeChecks(key.scope, checks)
	reply, err := r.conn.runScriptForNumbers(ctx, maxSends, r.reserve[key.mode], key.scope, keys, args)
	if err != nil {
		return nil, err
	}
	answers := readAnswers(reply[1:])
	if len(answers) != len(checks) {
		return nil, newReplyError(key.scope, reply)
	}
	if slices.ContainsFunc(answers, func(a Answer) bool { return a.Status == statusNoPeriod }) {
		return nil, errNoPeriod
	}
	return answers, nil
}

func (r *Reservations) encodeChecks(pool string, checks []Check) (keys, args []any) {
	now := r.conn.clock.now()
	keys, args = scopeKeys(pool, 2*len(checks)), make([]any, 0, 4*len(checks))
	for _, c := range checks {
		args = append(args, c.Lease, c.Group, len(c.Items))
		keys, args = appendItems(keys, args, pool, c.Items, now)
	}
	return keys, args
}
