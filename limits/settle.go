package limits

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Count settles checks that started. One that was not reserved is counted as of
// ago; one that was counted before is not counted again for a minute, however
// often this is repeated.
func (l *Limiter) Count(ctx context.Context, scope string, checks []Check, ago time.Duration) error {
	entries := make([]entry, len(checks))
	for i, c := range checks {
		entries[i] = entry{Check: c, started: true, ago: ago}
	}
	return l.settleEntries(ctx, scope, entries)
}

// Release settles checks that did not start: nothing of them was counted.
func (l *Limiter) Release(ctx context.Context, scope string, checks []Check) error {
	entries := make([]entry, len(checks))
	for i, c := range checks {
		entries[i] = entry{Check: c}
	}
	return l.settleEntries(ctx, scope, entries)
}

// Settle counts one check and releases its alternatives, in one step.
func (l *Limiter) Settle(ctx context.Context, scope string, started Check, others []Check) error {
	entries := []entry{{Check: started, started: true}}
	for _, c := range others {
		entries = append(entries, entry{Check: c})
	}
	return l.settleEntries(ctx, scope, entries)
}

// Overdue returns the leases of up to 1000 reservations that should have been
// settled by now, the oldest first. The process that made them may be gone: find out which
// of them started, and settle all by Count and Release, without a group.
func (l *Limiter) Overdue(ctx context.Context, scope string) ([]string, error) {
	if err := checkScope(scope); err != nil {
		return nil, err
	}
	cmd, err := l.run(ctx, l.scripts.overdue, scope, keysOf(scope, 0), []any{1000})
	if err != nil {
		return nil, err
	}
	return cmd.StringSlice()
}

type entry struct {
	Check
	started bool
	ago     time.Duration
}

// settled is what becomes of an entry.
type settled struct{}

func (l *Limiter) settleEntries(ctx context.Context, scope string, entries []entry) error {
	checks := make([]Check, len(entries))
	for i, e := range entries {
		checks[i] = e.Check
	}
	if err := checkAll(scope, checks); err != nil || len(entries) == 0 {
		return err
	}
	if _, err := l.settles.ask(ctx, lane{scope: scope}, entries); err != nil {
		return err
	}
	for _, e := range entries {
		for _, item := range e.Items {
			if e.started {
				l.noted.use(scope, item, 0)
			}
		}
	}
	return nil
}

func (l *Limiter) settleAll(ctx context.Context, to lane, entries []entry) ([]settled, error) {
	for part := range slices.Chunk(entries, chunk) {
		done, err := l.settleOnce(ctx, to.scope, part)
		if err == nil && !done { // now Redis' time is known
			if done, err = l.settleOnce(ctx, to.scope, part); err == nil && !done {
				err = leaping()
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return make([]settled, len(entries)), nil
}

func (l *Limiter) settleOnce(ctx context.Context, scope string, entries []entry) (done bool, err error) {
	now := l.now()
	keys, args := append(make([]any, 0, 3+2*len(entries)), sharedKeys(scope, entries[0].Check)...), make([]any, 0, 6*len(entries))
	for _, e := range entries {
		started := 0
		if e.started {
			started = 1
		}
		args = append(args, e.Lease, e.Group, started, max(e.ago.Milliseconds(), 0), len(e.Items))
		for _, item := range e.Items {
			in := item.Rule.in(scope)
			keys, args = append(keys, in.rule, in.subject(item.Subject)), append(args, item.Rule.specAt(now))
		}
	}
	cmd, err := l.run(ctx, l.scripts.settle, scope, keys, args)
	if err != nil {
		return false, err
	}
	if _, short := cmd.Val().(int64); short { // of quick_settle.lua
		return true, nil
	}
	reply, err := cmd.Int64Slice()
	if err != nil || len(reply) == 0 {
		return false, fmt.Errorf("limits of %s: %w: reply %v: %w", scope, ErrUnavailable, reply, err)
	}
	l.learn(reply[0])
	return len(reply) == 1+len(entries), nil
}

// leaping: Redis' time was learned a moment ago, and is another one already.
func leaping() error { return fmt.Errorf("%w: the clock of Redis leaps", ErrUnavailable) }
