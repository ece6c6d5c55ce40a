package upkeep

import (
	"context"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// retainBatch bounds one statement of Retain.
const retainBatch = 2000

// Retain removes what is older than keep (0: only what has a time of its own),
// chunk by chunk, until nothing is left or ctx ends. It returns how much.
func (k *Keeper) Retain(ctx context.Context, keep time.Duration) (store.Retained, error) {
	var total store.Retained
	for {
		removed, err := k.config.Ledger.Retain(ctx, keep, retainBatch)
		total.Events += removed.Events
		total.Attempts += removed.Attempts
		total.Results += removed.Results
		total.Answers += removed.Answers
		total.TokenChanges += removed.TokenChanges
		total.Minutes += removed.Minutes
		total.Tasks += removed.Tasks
		total.Batches += removed.Batches
		if err != nil {
			return total, fmt.Errorf("retention: %w", err)
		}
		if removed.Most() < retainBatch {
			return total, nil
		}
	}
}
