package seen

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// lastUsePrecision is the precision of the stored last use of an operator token. The uses of one token cause at most
// one write an hour.
const lastUsePrecision = time.Hour

// Tokens collects the operator tokens that were used, until they are written to the ledger. It is safe for
// concurrent use.
type Tokens struct {
	ledger Ledger
	now    func() time.Time

	mu      sync.Mutex
	waiting map[int64]struct{}  // to be written to the ledger
	written map[int64]time.Time // time of the last write by this replica, if it was in the last hour
}

// newTokens returns Tokens that have recorded no use. now is used only for elapsed time.
func newTokens(ledger Ledger, now func() time.Time) *Tokens {
	return &Tokens{ledger: ledger, now: now, waiting: map[int64]struct{}{}, written: map[int64]time.Time{}}
}

// Use records that the operator token with this id was used now.
func (t *Tokens) Use(tokenID int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at, isRecent := t.written[tokenID]; !isRecent || t.now().Sub(at) >= lastUsePrecision {
		t.waiting[tokenID] = struct{}{}
	}
}

// flush writes the recorded uses. If the write fails, the uses stay recorded.
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
	maps.DeleteFunc(t.written, func(_ int64, at time.Time) bool { return now.Sub(at) >= lastUsePrecision })
	for _, id := range ids {
		delete(t.waiting, id)
		t.written[id] = now
	}
	return nil
}
