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

// insertArgs returns the arguments of the statement dialect.addTasks.
func (t NewTask) insertArgs(batch int64, pool string) []any {
	priority := 0
	if t.Priority != nil {
		priority = *t.Priority
	}
	begins := timeText(t.NotBefore)
	return []any{batch, pool, t.Device, priority, t.Priority != nil, nullText(t.Payload), begins, timeText(t.NotAfter), begins}
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

func (s batches) createBatch(ctx context.Context, plain *sqlx.Tx, tx session, actor string, b Batch, q NewBatchTasks) (Batch, error) {
	if s.disableStatementTimeout != "" {
		if _, err := tx.exec(ctx, s.disableStatementTimeout); err != nil {
			return Batch{}, err
		}
	}
	id, err := insertBatch(ctx, tx, b)
	if err != nil {
		return Batch{}, err
	}
	n, err := s.queueTasks(ctx, plain, tx, id, b, q)
	if err != nil {
		return Batch{}, err
	}
	if _, err := tx.exec(ctx, `UPDATE batches SET total = $2 WHERE id = $1`, id, n.total); err != nil {
		return Batch{}, err
	}
	detail := n.String()
	if b.Lane == LaneUrgent {
		detail += " lane=" + string(b.Lane)
	}
	if err := tx.recordEvent(ctx, Event{Kind: "batch.created", Actor: actor, Pool: b.Pool, Batch: id, Detail: detail}); err != nil {
		return Batch{}, err
	}
	created, err := queryOne(ctx, tx, batchDest, `SELECT `+batchColumns+` FROM batches b WHERE b.id = $1`, id)
	if err != nil {
		return Batch{}, err
	}
	created.Skipped, created.Unknown = n.skipped, n.unknown
	tx.pendingNews.addBatch(id)
	return created, nil
}

// queuedCounts counts the tasks of a new batch.
type queuedCounts struct {
	total, skipped int64
	unknown        UnknownDevices
}

// String returns the counts as text, for the detail of the event batch.created.
func (n queuedCounts) String() string {
	if n.skipped == 0 {
		return fmt.Sprintf("tasks=%d", n.total)
	}
	return fmt.Sprintf("tasks=%d skipped=%d", n.total, n.skipped)
}

func (s batches) queueTasks(ctx context.Context, plain *sqlx.Tx, tx session, id int64, b Batch, q NewBatchTasks) (n queuedCounts, err error) {
	if q.Tasks == nil {
		n.total, err = tx.batches().insertTasksByTags(ctx, id, b, q.Tags)
	} else {
		n, err = s.insertTasks(ctx, plain, id, b, q.Tasks)
	}
	if err != nil {
		return n, err
	}
	if n.total == 0 && !q.DryRun {
		return n, ErrNoTasks
	}
	if q.Tasks != nil {
		n.unknown, err = tx.batches().countUnknownDevices(ctx, id)
	}
	if err == nil && q.RegisteredOnly && n.unknown.Tasks > 0 {
		err = fmt.Errorf("%w: %s", ErrUnknownDevice, n.unknown.First)
	}
	return n, err
}

// insertTasksByTags queues one task for each registered device that has all of the tags at this moment.
func (s batchesIn) insertTasksByTags(ctx context.Context, id int64, b Batch, tags map[string]string) (int64, error) {
	text, err := tagsText(tags)
	if err != nil {
		return 0, err
	}
	if err := s.enableTagIndex(ctx); err != nil {
		return 0, err
	}
	return s.exec(ctx, `
		INSERT INTO tasks (batch, pool, device, own_priority)
		SELECT $1, $2, d.id, FALSE FROM devices d WHERE {tagged $3} ORDER BY d.id`, id, b.Pool, text)
}

// countUnknownDevices counts the tasks of a batch whose devices are not registered.
func (s batchesIn) countUnknownDevices(ctx context.Context, id int64) (u UnknownDevices, err error) {
	err = s.scanRowArgs(ctx, `
		WITH unknown AS (
			SELECT t.id FROM tasks t WHERE t.batch = $1 AND NOT EXISTS (SELECT 1 FROM devices d WHERE d.id = t.device))
		SELECT count(*), COALESCE((SELECT t.device FROM tasks t WHERE t.id = (SELECT min(u.id) FROM unknown u)), '') FROM unknown`,
		[]any{id}, &u.Tasks, &u.First)
	if err != nil {
		return u, fmt.Errorf("finding unknown devices: %w", err)
	}
	return u, nil
}

func (s batches) insertTasks(ctx context.Context, tx *sqlx.Tx, id int64, b Batch, tasks iter.Seq2[NewTask, error]) (n queuedCounts, err error) {
	insert, err := tx.PrepareContext(ctx, s.addTasks)
	if err != nil {
		return n, err
	}
	defer func() { _ = insert.Close() }()
	for task, err := range tasks {
		if err == nil && task.Repeated {
			n.skipped++
			continue
		}
		if err == nil {
			_, err = insert.ExecContext(ctx, task.insertArgs(id, b.Pool)...)
		}
		if err != nil {
			return n, fmt.Errorf("inserting task %d: %w", n.total+n.skipped+1, err)
		}
		n.total++
	}
	if s.needsFlush {
		if _, err := insert.ExecContext(ctx); err != nil {
			return n, err
		}
	}
	return n, nil
}
