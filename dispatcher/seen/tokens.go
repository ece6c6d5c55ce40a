package seen

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// usedWithin is how exactly it is known when an operator token was used: so a token costs a
// write an hour at most, and a request none.
const usedWithin = time.Hour

// Tokens collects which operator tokens were used. It is safe for concurrent use.
type Tokens struct {
	ledger Ledger
	now    func() time.Time

	mu      sync.Mutex
	waiting map[int64]struct{}  // for the ledger
	written map[int64]time.Time // by this replica, in the last hour
}

func newTokens(ledger Ledger, now func() time.Time) *Tokens {
	return &Tokens{ledger: ledger, now: now, waiting: map[int64]struct{}{}, written: map[int64]time.Time{}}
}

// Use notes a token.
func (t *Tokens) Use(id int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at, lately := t.written[id]; !lately || t.now().Sub(at) >= usedWithin {
		t.waiting[id] = struct{}{}
	}
}

// flush writes what was noted. A time that could not be written is kept.
func (t *Tokens) flush(ctx context.Context) error {
	t.mu.Lock()
	ids := slices.Sorted(maps.Keys(t.waiting))
	t.mu.Unlock()
	if len(ids) == 0 {
		return nil
	}
	if err := t.ledger.TouchTokens(ctx, ids); err != nil {
		return fmt.Errorf("writing the use of tokens: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	maps.DeleteFunc(t.written, func(_ int64, at time.Time) bool { return now.Sub(at) >= usedWithin })
	for _, id := range ids {
		delete(t.waiting, id)
		t.written[id] = now
	}
	return nil
}
