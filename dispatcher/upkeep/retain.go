package upkeep

import (
	"context"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// rowsPerRetain is the maximum number of rows that one statement of Retain deletes.
const rowsPerRetain = 2000

// DeleteOldRows deletes rows that are older than keepFor, in parts, until none is left or ctx ends. It returns the numbers of deleted rows. If
// keepFor is 0, it deletes only rows that have their own retention time.
func (k *Keeper) DeleteOldRows(ctx context.Context, keepFor time.Duration) (store.DeletedCounts, error) {
	var total store.DeletedCounts
	for {
		removed, err := k.config.Ledger.Retain(ctx, keepFor, rowsPerRetain)
		total.Events += removed.Events
		total.Attempts += removed.Attempts
		total.Results += removed.Results
		total.Answers += removed.Answers
		total.TokenChanges += removed.TokenChanges
		total.News += removed.News
		total.Minutes += removed.Minutes
		total.Tasks += removed.Tasks
		total.Batches += removed.Batches
		if err != nil {
			return total, fmt.Errorf("deleting old rows: %w", err)
		}
		if removed.Largest() < rowsPerRetain {
			return total, nil
		}
	}
}
