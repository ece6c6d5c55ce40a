package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/jmoiron/sqlx"
)

// NewTask is one task of a new batch.
type NewTask struct {
	Device   string
	Payload  json.RawMessage // nil means the payload of the batch
	Priority *int            // nil means the priority of the batch

	NotBefore, NotAfter *time.Time // apply in addition to NotBefore and NotAfter of the batch; nil means no limit
	Repeated            bool       // the task is not queued, but counted in Batch.Skipped
}

// insertArgs returns the arguments of dialect.addTasks for task t.
func (t NewTask) insertArgs(batchID int64, pool string) []any {
	priority := 0
	if t.Priority != nil {
		priority = *t.Priority
	}
	begins := timeTextOrNull(t.NotBefore)
	return []any{batchID, pool, t.Device, priority, t.Priority != nil, jsonTextOrNull(t.Payload), begins, timeTextOrNull(t.NotAfter), begins}
}

// NewBatchTasks describes the tasks of a new batch.
type NewBatchTasks struct {
	Tasks iter.Seq2[NewTask, error] // if nil, one task is queued for each registered device that has all of Tags
	Tags  map[string]string

	RegisteredOnly bool // refuse tasks for devices that are not registered
	DryRun         bool // check everything and change nothing
}

// errDryRun rolls back the transaction of a dry run that succeeded.
var errDryRun = errors.New("dry run")

// createBatch does the work of CreateBatch in the transaction tx. unpreparedTx is the same transaction without prepared statements, for
// COPY.
func (s batches) createBatch(ctx context.Context, unpreparedTx *sqlx.Tx, tx session, actor string, batch Batch, newTasks NewBatchTasks) (Batch, error) {
	if s.disableStatementTimeout != "" {
		if _, err := tx.exec(ctx, s.disableStatementTimeout); err != nil {
			return Batch{}, err
		}
	}
	id, err := insertBatch(ctx, tx, batch)
	if err != nil {
		return Batch{}, err
	}
	n, err := s.queueTasks(ctx, unpreparedTx, tx, id, batch, newTasks)
	if err != nil {
		return Batch{}, err
	}
	if _, err := tx.exec(ctx, `UPDATE batches SET total = $2 WHERE id = $1`, id, n.total); err != nil {
		return Batch{}, err
	}
	detail := n.String()
	if batch.Lane == LaneUrgent {
		detail += " lane=" + string(batch.Lane)
	}
	if err := tx.recordEvent(ctx, Event{Kind: "batch.created", Actor: actor, Pool: batch.Pool, Batch: id, Detail: detail}); err != nil {
		return Batch{}, err
	}
	created, err := queryOne(ctx, tx, batchScanDest, `SELECT `+batchColumns+` FROM batches b WHERE b.id = $1`, id)
	if err != nil {
		return Batch{}, err
	}
	created.Skipped, created.Unknown, created.WrongWire = n.skipped, n.unknown, n.wrongWire
	tx.pendingNews.addBatch(id)
	return created, nil
}

type queuedCounts struct {
	total, skipped int64
	unknown        UnknownDevices
	wrongWire      int64 // tasks of devices that speak DDI and cannot read the payload
}

// String returns the counts as text, for the detail of the event batch.created.
func (n queuedCounts) String() string {
	if n.skipped == 0 {
		return fmt.Sprintf("tasks=%d", n.total)
	}
	return fmt.Sprintf("tasks=%d skipped=%d", n.total, n.skipped)
}

// queueTasks queues newTasks in the batch batchID and counts them. unpreparedTx is the transaction tx without prepared statements, for
// COPY.
func (s batches) queueTasks(ctx context.Context, unpreparedTx *sqlx.Tx, tx session, batchID int64, batch Batch, newTasks NewBatchTasks) (counts queuedCounts, err error) {
	if newTasks.Tasks == nil {
		counts.total, err = tx.insertTasksByTags(ctx, batchID, batch, newTasks.Tags)
	} else {
		counts, err = s.insertTasks(ctx, unpreparedTx, batchID, batch, newTasks.Tasks)
	}
	if err != nil {
		return counts, err
	}
	if counts.total == 0 && !newTasks.DryRun {
		return counts, ErrNoTasks
	}
	if newTasks.Tasks != nil {
		counts.unknown, err = tx.countUnknownDevices(ctx, batchID)
	}
	if err == nil && newTasks.RegisteredOnly && counts.unknown.Tasks > 0 {
		err = fmt.Errorf("%w: %s", ErrUnknownDevice, counts.unknown.First)
	}
	if err == nil {
		counts.wrongWire, err = tx.countWrongWire(ctx, batchID)
	}
	return counts, err
}

// countWrongWire counts the tasks of the batch whose devices speak DDI and cannot read the payload. In a fleet without DDI devices, the
// index devices_hawkbit is empty, so the count costs nothing.
func (s session) countWrongWire(ctx context.Context, batchID int64) (count int64, err error) {
	defer wrapError(&err, "counting devices of another wire")
	err = s.scanRow(ctx, []any{&count}, `
		SELECT count(*) FROM devices d JOIN tasks o ON o.device = d.id AND o.state = 'pending' AND o.batch * 1 = $1 JOIN batches c ON c.id = o.batch
			LEFT JOIN profiles w ON w.name = d.profile
		WHERE d.wire = 'hawkbit' AND NOT `+fitsDDI, batchID)
	return count, err
}

// insertTasksByTags queues one task for each registered device that has all tags now, and returns their number.
func (s session) insertTasksByTags(ctx context.Context, batchID int64, batch Batch, tags map[string]string) (queued int64, err error) {
	text, err := tagsJSON(tags)
	if err != nil {
		return 0, err
	}
	if err := s.enableTagIndex(ctx); err != nil {
		return 0, err
	}
	return s.exec(ctx, `
		INSERT INTO tasks (batch, pool, device, own_priority)
		SELECT $1, $2, d.id, FALSE FROM devices d WHERE {tagged $3} ORDER BY d.id`, batchID, batch.Pool, text)
}

// countUnknownDevices counts the tasks of the batch whose devices are not registered.
func (s session) countUnknownDevices(ctx context.Context, id int64) (unknown UnknownDevices, err error) {
	defer wrapError(&err, "finding unknown devices")
	err = s.scanRow(ctx, []any{&unknown.Tasks, &unknown.First}, `
		WITH unknown AS (
			SELECT t.id FROM tasks t WHERE t.batch = $1 AND NOT EXISTS (SELECT 1 FROM devices d WHERE d.id = t.device))
		SELECT count(*), COALESCE((SELECT t.device FROM tasks t WHERE t.id = (SELECT min(u.id) FROM unknown u)), '') FROM unknown`, id)
	return unknown, err
}

// insertTasks queues tasks in the batch batchID and counts them. unpreparedTx is a transaction without prepared statements, for COPY.
func (s batches) insertTasks(ctx context.Context, unpreparedTx *sqlx.Tx, batchID int64, batch Batch, tasks iter.Seq2[NewTask, error]) (counts queuedCounts, err error) {
	insert, err := unpreparedTx.PrepareContext(ctx, s.addTasks)
	if err != nil {
		return counts, err
	}
	defer func() { _ = insert.Close() }()
	for task, err := range tasks {
		if err == nil && task.Repeated {
			counts.skipped++
			continue
		}
		if err == nil {
			// If ctx ends, the transaction rolls back, so the next insert fails. With ctx, SQLite would start a goroutine for each task.
			_, err = insert.ExecContext(context.WithoutCancel(ctx), task.insertArgs(batchID, batch.Pool)...)
		}
		if err != nil {
			return counts, fmt.Errorf("inserting task %d: %w", counts.total+counts.skipped+1, err)
		}
		counts.total++
	}
	if s.needsFlush {
		if _, err := insert.ExecContext(ctx); err != nil {
			return counts, err
		}
	}
	return counts, nil
}
