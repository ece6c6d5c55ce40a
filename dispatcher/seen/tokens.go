package seen

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// usePrecision is the precision of the stored time at which an operator token was used. In a period of this length, a replica writes the uses
// of a token at most once.
const usePrecision = time.Minute

// TokenUses counts the requests with each operator token until the counts are written to the ledger. It is safe for concurrent use.
type TokenUses struct {
	ledger Ledger
	now    func() time.Time

	mu      sync.Mutex
	waiting map[int64]int64     // requests by the id of the token, to be written to the ledger
	written map[int64]time.Time // time of the last write by this replica, if it was within usePrecision
}

func newTokenUses(ledger Ledger, now func() time.Time) *TokenUses {
	return &TokenUses{ledger: ledger, now: now, waiting: map[int64]int64{}, written: map[int64]time.Time{}}
}

// RecordUse records a request with the operator token that has this id.
func (t *TokenUses) RecordUse(tokenID int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting[tokenID]++
}

// writeUses writes the uses of each token, except of tokens that it has written within usePrecision. If the write fails, the uses stay recorded.
func (t *TokenUses) writeUses(ctx context.Context) error {
	uses := t.usesToWrite()
	if len(uses) == 0 {
		return nil
	}
	if err := t.ledger.RecordTokenUses(ctx, uses); err != nil {
		return fmt.Errorf("writing the use of tokens: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, use := range uses {
		t.written[use.Token] = t.now()
		if t.waiting[use.Token] -= use.Requests; t.waiting[use.Token] == 0 {
			delete(t.waiting, use.Token)
		}
	}
	return nil
}

func (t *TokenUses) usesToWrite() (uses []store.TokenUse) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	maps.DeleteFunc(t.written, func(_ int64, at time.Time) bool { return now.Sub(at) >= usePrecision })
	for _, id := range slices.Sorted(maps.Keys(t.waiting)) {
		if _, isRecent := t.written[id]; !isRecent {
			uses = append(uses, store.TokenUse{Token: id, Requests: t.waiting[id]})
		}
	}
	return uses
}
