package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
)

// Batch is what an operator queued in one request: tasks that share a pool,
// a kind and their rules.
type Batch struct {
	ID      int64
	Name    string
	Pool    string
	Kind    string
	Payload json.RawMessage // for tasks without their own; nil = none

	Priority int // of its tasks, unless they have their own; higher first
	Weight   int // share among the batches of a pool, >= 1

	NotBefore *time.Time // nil = at once
	NotAfter  *time.Time // pending tasks expire then; nil = never

	MaxAttempts  int           // counted attempts, >= 1
	RetryOn      []string      // causes retried: "failed", "timed_out"
	RetryBackoff time.Duration // before the second attempt; doubles, jittered
	OnLost       string        // "retry" or "fail": when a lease lapsed
	Lease        time.Duration // 0 = the pool's
	MaxRun       time.Duration // renewals end there; 0 = 1 h

	Paused      bool
	CancelledAt *time.Time
	CreatedAt   time.Time
	ReadAt      time.Time // the database's clock at the reading

	Total  int64
	Counts map[TaskState]int64 // exact; adds up to Total. Filled by Batch and Batches.
}

// NewTask is one task of a new batch.
type NewTask struct {
	Device   string
	Payload  json.RawMessage // nil = the batch's
	Priority *int            // nil = the batch's
}

// defaultMaxRun is the end of renewals where a batch names none.
const defaultMaxRun = time.Hour

const batchColumns = `b.id, b.name, b.pool, b.kind, b.payload, b.priority, b.weight, b.not_before, b.not_after,
	b.max_attempts, b.retry_on, b.retry_backoff_ms, b.on_lost, b.lease_ms, b.max_run_ms, b.paused, b.cancelled_at, b.created_at, b.total, {now}`

func batchDest(b *Batch) []any {
	return []any{
		&b.ID, &b.Name, &b.Pool, &b.Kind,
		document{&b.Payload},
		&b.Priority, &b.Weight,
		maybe{&b.NotBefore},
		maybe{&b.NotAfter},
		&b.MaxAttempts,
		words{&b.RetryOn},
		millis{&b.RetryBackoff},
		&b.OnLost,
		millis{&b.Lease},
		millis{&b.MaxRun},
		&b.Paused,
		maybe{&b.CancelledAt},
		instant{&b.CreatedAt},
		&b.Total,
		instant{&b.ReadAt},
	}
}

// CreateBatch queues tasks, all or none: an error of the sequence, returned
// wrapped, leaves nothing behind. The tasks are streamed, never held in memory.
// Their devices need not be registered. ErrUnknownPool.
func (s *Store) CreateBatch(ctx context.Context, actor string, b Batch, tasks iter.Seq2[NewTask, error]) (Batch, error) {
	var created Batch
	// Not write: the sequence cannot be read twice.
	err := s.writeOnce(ctx, func(plain *sqlx.Tx) error {
		tx := session{plain, s.dialect}
		if s.bulk != "" {
			if _, err := tx.exec(ctx, s.bulk); err != nil {
				return err
			}
		}
		id, err := insertBatch(ctx, tx, b)
		if err != nil {
			return err
		}
		total, err := s.insertTasks(ctx, plain, id, b, tasks)
		if err != nil {
			return err
		}
		if _, err := tx.exec(ctx, `UPDATE batches SET total = $2 WHERE id = $1`, id, total); err != nil {
			return err
		}
		if err := tx.record(ctx, Event{Kind: "batch.created", Actor: actor, Pool: b.Pool, Batch: id, Detail: fmt.Sprintf("tasks=%d", total)}); err != nil {
			return err
		}
		created, err = one(ctx, tx, batchDest, `SELECT `+batchColumns+` FROM batches b WHERE b.id = $1`, id)
		return err
	})
	if err != nil {
		return Batch{}, fmt.Errorf("creating a batch: %w", err)
	}
	created.Counts = map[TaskState]int64{}
	if created.Total > 0 {
		created.Counts[Pending] = created.Total
	}
	return created, nil
}

func insertBatch(ctx context.Context, tx session, b Batch) (id int64, err error) {
	err = tx.rowOf(ctx, `
		INSERT INTO batches (name, pool, kind, payload, priority, weight, not_before, not_after, max_attempts,
			retry_on, retry_backoff_ms, on_lost, lease_ms, max_run_ms, paused, created_at)
		SELECT $1, p.name, $3, $4{json}, $5, $6, {epoch} + $7 * {ms}, {epoch} + $8 * {ms}, $9, $10, $11, $12, $13, $14, $15, {now}
		FROM pools p WHERE p.name = $2
		RETURNING id`, []any{
		b.Name, b.Pool, b.Kind, nullText(b.Payload), b.Priority, max(b.Weight, 1), nullMillis(b.NotBefore), nullMillis(b.NotAfter),
		max(b.MaxAttempts, 1), strings.Join(b.RetryOn, ","), b.RetryBackoff.Milliseconds(), b.OnLost, b.Lease.Milliseconds(),
		b.MaxRun.Milliseconds(), b.Paused,
	}, &id)
	if errors.Is(err, ErrNotFound) {
		return 0, fmt.Errorf("%w: %s", ErrUnknownPool, b.Pool)
	}
	return id, err
}

func (s *Store) insertTasks(ctx context.Context, tx *sqlx.Tx, id int64, b Batch, tasks iter.Seq2[NewTask, error]) (total int64, err error) {
	insert, err := tx.PrepareContext(ctx, s.addTasks)
	if err != nil {
		return 0, err
	}
	defer func() { _ = insert.Close() }()
	for task, err := range tasks {
		if err != nil {
			return 0, fmt.Errorf("task %d: %w", total+1, err)
		}
		priority := b.Priority
		if task.Priority != nil {
			priority = *task.Priority
		}
		if _, err := insert.ExecContext(ctx, id, b.Pool, task.Device, priority, nullText(task.Payload)); err != nil {
			return 0, fmt.Errorf("task %d: %w", total+1, err)
		}
		total++
	}
	if s.flush {
		if _, err := insert.ExecContext(ctx); err != nil {
			return 0, err
		}
	}
	return total, nil
}

// Batch returns one batch with its counts; ErrNotFound.
func (s *Store) Batch(ctx context.Context, id int64) (Batch, error) {
	b, err := one(ctx, s.read(), batchDest, `SELECT `+batchColumns+` FROM batches b WHERE b.id = $1`, id)
	if err != nil {
		return Batch{}, err
	}
	list := []Batch{b}
	if err := s.count(ctx, list); err != nil {
		return Batch{}, err
	}
	return list[0], nil
}

// Batches returns up to limit batches with their counts, newest first, those
// below the id before (0 = from the newest).
func (s *Store) Batches(ctx context.Context, before int64, limit int) ([]Batch, error) {
	q := query{text: `SELECT ` + batchColumns + ` FROM batches b`}
	whereSet(&q, "b.id < %s", before)
	text, args := q.end(` ORDER BY b.id DESC`, limit)
	list, err := collect(ctx, s.read(), batchDest, text, args...)
	if err != nil {
		return nil, err
	}
	return list, s.count(ctx, list)
}

// count fills Counts. One statement, thus one moment: a task is in exactly one
// of the counts.
func (s *Store) count(ctx context.Context, list []Batch) error {
	type count struct {
		batch int64
		state TaskState
		n     int64
	}
	byID := map[int64]*Batch{}
	for i := range list {
		list[i].Counts = map[TaskState]int64{}
		byID[list[i].ID] = &list[i]
	}
	counts, err := collect(ctx, s.read(), func(c *count) []any { return []any{&c.batch, &c.state, &c.n} }, `
		SELECT batch, state, count(*) FROM tasks WHERE batch IN (SELECT id FROM {ids}) GROUP BY batch, state
		UNION ALL
		SELECT batch, 'dispatched', count(*) FROM grants WHERE batch IN (SELECT id FROM {ids}) GROUP BY batch`,
		ids(slices.Collect(maps.Keys(byID))...))
	if err != nil {
		return fmt.Errorf("counting tasks: %w", err)
	}
	for _, c := range counts {
		byID[c.batch].Counts[c.state] = c.n
	}
	for _, b := range list {
		splitDispatched(b.Counts, b.Counts[Dispatched])
	}
	return nil
}
