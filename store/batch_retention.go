package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// deleteOldBatches deletes, oldest batch first, the tasks of batches that ended more than keepFor ago, and then each batch that has no task
// left. It stops when it has deleted limit tasks and batches in total. A batch with a task that is open, or that ended later, keeps all its
// tasks. Each transaction also subtracts its deleted tasks from the counts.
func (s batches) deleteOldBatches(ctx context.Context, keepFor time.Duration, limit int) (deletedTasks, deletedBatches int64, err error) {
	for batch := int64(0); deletedTasks+deletedBatches < int64(limit); {
		var removed int64
		var gone bool
		err := s.write(ctx, func(tx session) (err error) {
			removed, gone = 0, false
			if batch, err = tx.lockOldBatch(ctx, batch, keepFor); err != nil {
				return err
			}
			removed, gone, err = tx.removeEndedTasks(ctx, batch, limit-int(deletedTasks))
			return err
		})
		if errors.Is(err, ErrNotFound) {
			break
		}
		if err != nil {
			return deletedTasks, deletedBatches, err
		}
		deletedTasks += removed
		if gone {
			deletedBatches++
		}
		if !gone && removed == 0 { // lockOldBatch does not lock the tasks. A task was retried in the meantime, so skip this batch
			batch++
		}
	}
	return deletedTasks, deletedBatches, nil
}

// lockOldBatch locks and returns the first batch with id >= firstID whose tasks all ended more than keepFor ago, or ErrNotFound. It uses
// count(*), because Postgres may turn an EXISTS into a scan of all tasks.
func (s session) lockOldBatch(ctx context.Context, firstID int64, keepFor time.Duration) (batchID int64, err error) {
	return queryOne(ctx, s, singleColumn[int64], `
		SELECT b.id FROM batches b
		WHERE b.id >= $1 AND b.created_at < (SELECT {now}) - $2 * {ms}
			AND (SELECT count(*) FROM (SELECT 1 FROM tasks t WHERE t.batch = b.id AND t.state = 'pending' LIMIT 1) AS open) = 0
			AND (SELECT count(*) FROM (
				SELECT 1 FROM tasks t WHERE t.batch = b.id AND t.finished_at >= (SELECT {now}) - $2 * {ms} LIMIT 1) AS late) = 0
		ORDER BY b.id LIMIT 1 FOR UPDATE OF b`, firstID, keepFor.Milliseconds())
}

// removeEndedTasks deletes at most limit ended tasks of the batch and returns their number. If the batch then has no task left, the batch
// is deleted too.
func (s session) removeEndedTasks(ctx context.Context, batchID int64, limit int) (removed int64, isBatchGone bool, err error) {
	list, err := collect(ctx, s, singleColumn[int64], `
		SELECT t.id FROM tasks t
		WHERE t.id IN (SELECT id FROM tasks WHERE batch = $1 AND state <> 'pending' ORDER BY state, id LIMIT $2) AND t.state <> 'pending'
		ORDER BY t.id FOR UPDATE OF t`, batchID, limit)
	if err != nil {
		return 0, false, err
	}
	in := idsToJSONArray(list...)
	if _, err := s.exec(ctx, `
		INSERT INTO batch_deltas (batch, pool, state, n)
		SELECT batch, pool, state, -count(*) FROM tasks WHERE id IN (SELECT id FROM {ids}) GROUP BY batch, pool, state`, in); err != nil {
		return 0, false, fmt.Errorf("subtracting tasks from the counts: %w", err)
	}
	if removed, err = s.exec(ctx, `DELETE FROM tasks WHERE id IN (SELECT id FROM {ids})`, in); err != nil {
		return 0, false, err
	}
	if _, err := s.exec(ctx, `UPDATE batches SET total = total - $2 WHERE id = $1`, batchID, removed); err != nil {
		return 0, false, err
	}
	left, err := queryOne(ctx, s, singleColumn[bool], `SELECT EXISTS (SELECT 1 FROM tasks WHERE batch = $1)`, batchID)
	if err != nil || left {
		return removed, false, err
	}
	return removed, true, s.removeBatch(ctx, batchID)
}

const retentionActor = "retention"

// removeBatch deletes a batch without tasks and records the event.
func (s session) removeBatch(ctx context.Context, batchID int64) error {
	if _, err := s.exec(ctx, `
		INSERT INTO events (at, kind, actor, actor_kind, pool, batch, detail)
		SELECT {now}, 'batch.removed', $2, 'program', pool, id, name FROM batches WHERE id = $1`, batchID, retentionActor); err != nil {
		return err
	}
	_, err := s.exec(ctx, `DELETE FROM batches WHERE id = $1`, batchID)
	return err
}
