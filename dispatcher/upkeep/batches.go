package upkeep

import (
	"context"
	"fmt"

	"github.com/fleetslots/dispatcher/store"
)

// ExpireTasks ends the pending tasks that may no longer start because of a time limit, and returns their number.
func (k *Keeper) ExpireTasks(ctx context.Context) (expiredTasks int, err error) {
	expiredTasks, err = runPartsUntilDone(ctx, "expiring tasks", k.config.Ledger.Expire)
	if err != nil {
		return expiredTasks, err
	}
	late, err := k.expireTasksByMaxWait(ctx)
	return expiredTasks + late, err
}

// After maxFruitlessParts parts of the search without a task to expire, a pass stops its search.
const maxFruitlessParts = 10

func (k *Keeper) expireTasksByMaxWait(ctx context.Context) (expiredTasks int, err error) {
	k.waitSearch.mu.Lock()
	defer k.waitSearch.mu.Unlock()
	for vain := 0; vain < maxFruitlessParts; {
		n, next, err := k.config.Ledger.ExpireWaited(ctx, k.waitSearch.position, partSize)
		if err != nil {
			return expiredTasks, fmt.Errorf("expiring tasks: %w", err)
		}
		expiredTasks, k.waitSearch.position = expiredTasks+n, next
		if next == (store.ExpiryPosition{}) {
			break
		}
		if n == 0 {
			vain++
		}
	}
	return expiredTasks, nil
}

// EndCancelledTasks ends the waiting tasks of cancelled batches, and returns their number.
func (k *Keeper) EndCancelledTasks(ctx context.Context) (endedTasks int, err error) {
	return runPartsUntilDone(ctx, "ending cancelled tasks", k.config.Ledger.EndCancelled)
}

// changesPerFold is the maximum number of changes that one transaction adds to the counts.
const changesPerFold = 10_000

// FoldCounts adds the recorded changes of task states to the counts of batches. abortedBatchIDs holds the ids of the batches that their abort
// rules paused, because too many of their tasks failed.
func (k *Keeper) FoldCounts(ctx context.Context) (abortedBatchIDs []int64, err error) {
	for {
		n, paused, err := k.config.Ledger.Fold(ctx, changesPerFold)
		abortedBatchIDs = append(abortedBatchIDs, paused...)
		if err != nil {
			return abortedBatchIDs, fmt.Errorf("folding: %w", err)
		}
		if n < changesPerFold {
			return abortedBatchIDs, nil
		}
	}
}

// RefreshWindows computes the next opening of windows that have closed.
func (k *Keeper) RefreshWindows(ctx context.Context) error {
	_, err := runPartsUntilDone(ctx, "refreshing windows", k.config.Ledger.RefreshWindows)
	return err
}

// runPartsUntilDone calls runPart with the limit partSize, until runPart returns a smaller number or fails. It returns the sum of the numbers.
// workName names the work in the error.
func runPartsUntilDone(ctx context.Context, workName string, runPart func(ctx context.Context, limit int) (int, error)) (total int, err error) {
	for {
		n, err := runPart(ctx, partSize)
		total += n
		if err != nil {
			return total, fmt.Errorf("%s: %w", workName, err)
		}
		if n < partSize {
			return total, nil
		}
	}
}
