package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
)

// batches are the batches of the ledger, with the counts of their tasks.
type batches struct{ *connection }

// Batch is what an operator queued in one request: tasks that share a pool,
// a kind and their rules.
type Batch struct {
	ID      int64
	Name    string
	Pool    string
	Kind    string
	Payload json.RawMessage `json:",omitempty"` // for tasks without their own; nil = none

	Priority int // of its tasks, unless they have their own; higher first
	Weight   int // share among the batches of a pool, >= 1
	Lane     Lane
	System   bool // of the leases of callers: nobody queues into it

	NotBefore *time.Time // nil = at once
	NotAfter  *time.Time // pending tasks expire then; nil = never

	MaxWait time.Duration // a task that was not started within it expires: from the creation, or a later NotBefore; 0 = never

	Windows      []Window // none = always open
	FinishInside bool     // nothing starts with less than its lease left of a window, its own or its pool's
	Opening      Opening  // of its windows

	Limits json.RawMessage `json:",omitempty"` // a JSON array of policies, valid; nil = none

	MaxAttempts  int           // counted attempts, >= 1
	RetryOn      []string      // causes retried: "failed", "timed_out"
	RetryBackoff time.Duration // before the second attempt; doubles, jittered
	OnLost       string        // "retry" or "fail": when a lease lapsed
	Lease        time.Duration // 0 = the pool's
	MaxRun       time.Duration // renewals end there; 0 = 1 h
	Abort        *Abort        // nil: it is never paused by itself

	Paused      bool
	PausedBy    string
	PausedAt    *time.Time // nil: not paused, or since its creation
	PauseReason string
	CancelledAt *time.Time
	CreatedAt   time.Time
	ReadAt      time.Time // the database's clock at the reading

	Total   int64
	Skipped int64               `json:",omitempty"` // tasks that were Repeated. Filled by CreateBatch alone.
	Unknown Unknown             `json:",omitzero"`  // likewise
	Counts  map[TaskState]int64 // exact; adds up to Total. Filled by Batch and Batches.
	Recent  int64               // tasks that were tried and came to an end in the last 5 min. Filled as Counts.
	Around  Around              `json:"-"` // Filled as Counts.
}

// Around is what of the pool of a batch decides whether something starts.
type Around struct {
	Paused   bool
	Capacity int
	Lease    time.Duration
	Opening  Opening
}

// Lane says whether a batch goes before all others of its pool, for a part of the slots.
type Lane string

// The lanes; they are stored.
const (
	LaneNormal Lane = "normal" // by weight; as is no lane
	LaneUrgent Lane = "urgent"
)

// Unknown are the tasks of a new batch whose devices are not registered.
type Unknown struct {
	Tasks int64
	First string // the device of the first of them; empty: none
}

// taskPriority is that of task t of batch b: its own, or what its batch has now.
const taskPriority = `CASE WHEN t.own_priority THEN t.priority ELSE b.priority END`

// defaultMaxRun is the end of renewals where a batch names none.
const defaultMaxRun = time.Hour

const batchColumns = `b.id, b.name, b.pool, b.kind, b.payload, b.priority, b.weight, b.lane, b.not_before, b.not_after, b.max_wait_ms,
	b.max_attempts, b.retry_on, b.retry_backoff_ms, b.on_lost, b.lease_ms, b.max_run_ms, b.abort_failure, b.abort_min,
	b.windows, b.finish_inside, b.opens_at, b.closes_at, b.limits,
	b.paused, b.paused_by, b.paused_at, b.pause_reason, b.cancelled_at, b.created_at, b.total, b.system, {now}`

func batchDest(b *Batch) []any {
	return []any{
		&b.ID, &b.Name, &b.Pool, &b.Kind,
		document{&b.Payload},
		&b.Priority, &b.Weight, &b.Lane,
		maybe{&b.NotBefore},
		maybe{&b.NotAfter},
		millis{&b.MaxWait},
		&b.MaxAttempts,
		words{&b.RetryOn},
		millis{&b.RetryBackoff},
		&b.OnLost,
		millis{&b.Lease},
		millis{&b.MaxRun},
		&abortFailure{b},
		&abortMin{b},
		fromJSON(&b.Windows),
		&b.FinishInside,
		instant{&b.Opening.From},
		instant{&b.Opening.Until},
		document{&b.Limits},
		&b.Paused, &b.PausedBy,
		maybe{&b.PausedAt},
		&b.PauseReason,
		maybe{&b.CancelledAt},
		instant{&b.CreatedAt},
		&b.Total, &b.System,
		instant{&b.ReadAt},
	}
}

const (
	aroundColumns = batchColumns + `, p.paused, p.capacity, p.lease_ms, p.opens_at, p.closes_at`
	aroundText    = `SELECT ` + aroundColumns + ` FROM batches b JOIN pools p ON p.name = b.pool`
)

func aroundDest(b *Batch) []any {
	return append(batchDest(b), &b.Around.Paused, &b.Around.Capacity, millis{&b.Around.Lease}, instant{&b.Around.Opening.From}, instant{&b.Around.Opening.Until})
}

// CreateBatch queues tasks, all or none: an error of the sequence, returned
// wrapped, leaves nothing behind. The tasks are streamed, never held in memory.
// Their devices need not be registered, unless the queue asks for it. With
// WithOnce it takes effect once. ErrUnknownPool, ErrUnknownDevice, ErrNoTasks.
func (s batches) CreateBatch(ctx context.Context, actor string, b Batch, q Queue) (Batch, error) {
	leave, err := s.enter(OnceOf(ctx))
	defer leave()
	if err != nil {
		return Batch{}, fmt.Errorf("creating a batch: %w", err)
	}
	var created Batch
	var news telling
	// Not write: the sequence cannot be read twice.
	err = s.writeOnce(ctx, s.slow, func(plain *sqlx.Tx) error {
		tx := s.session(plain, &news)
		err := tx.once(ctx, &created, func() (err error) {
			if created, err = s.createBatch(ctx, plain, tx, actor, b, q); err == nil && q.DryRun {
				return errDryRun // so that all is undone
			}
			return err
		})
		if err != nil {
			return err
		}
		return tx.addNews(ctx)
	})
	s.announce(ctx, news, err)
	if err != nil && !errors.Is(err, errDryRun) {
		return Batch{}, fmt.Errorf("creating a batch: %w", err)
	}
	created.Counts = map[TaskState]int64{}
	if created.Total > 0 {
		created.Counts[Pending] = created.Total
	}
	return created, nil
}

func insertBatch(ctx context.Context, tx session, b Batch) (id int64, err error) {
	abort := Abort{}
	if b.Abort != nil {
		abort = *b.Abort
	}
	if err := tx.pools().checkFits(ctx, b); err != nil {
		return 0, err
	}
	o, err := tx.pools().opening(ctx, b.Windows)
	if err != nil {
		return 0, err
	}
	err = tx.rowOf(ctx, `
		INSERT INTO batches (name, pool, kind, payload, priority, weight, not_before, not_after, max_attempts,
			retry_on, retry_backoff_ms, on_lost, lease_ms, max_run_ms, paused, abort_failure, abort_min,
			windows, finish_inside, opens_at, closes_at, windows_due, limits, lane, max_wait_ms, wait_until, created_at)
		SELECT $1, p.name, $3, $4{json}, $5, $6, {epoch} + $7 * {ms}, {epoch} + $8 * {ms}, $9, $10, $11, $12, $13, $14, $15, $16, $17,
			$18{json}, $19, {epoch} + $20 * {ms}, {epoch} + $21 * {ms}, {epoch} + $22 * {ms}, $23{json}, $24,
			CAST($25 AS bigint), CASE WHEN CAST($25 AS bigint) > 0 THEN
				CASE WHEN {epoch} + $7 * {ms} > {now} THEN {epoch} + $7 * {ms} ELSE {now} END + CAST($25 AS bigint) * {ms} END, {now}
		FROM pools p WHERE p.name = $2 AND p.deleted_at IS NULL {share p}
		RETURNING id`, []any{
		b.Name, b.Pool, b.Kind, nullText(b.Payload), b.Priority, max(b.Weight, 1), nullMillis(b.NotBefore), nullMillis(b.NotAfter),
		max(b.MaxAttempts, 1), strings.Join(b.RetryOn, ","), b.RetryBackoff.Milliseconds(), b.OnLost, b.Lease.Milliseconds(),
		b.MaxRun.Milliseconds(), b.Paused, abort.Failure, abort.Min, o.windows, b.FinishInside, o.from, o.until, o.due, nullText(b.Limits),
		cmp.Or(b.Lane, LaneNormal), b.MaxWait.Milliseconds(),
	}, &id)
	if errors.Is(err, ErrNotFound) {
		return 0, fmt.Errorf("%w: %s", ErrUnknownPool, b.Pool)
	}
	return id, err
}

// Batch returns one batch with its counts; ErrNotFound.
func (s batches) Batch(ctx context.Context, id int64) (Batch, error) {
	b, err := one(ctx, s.read(), aroundDest, aroundText+` WHERE b.id = $1`, id)
	if err != nil {
		return Batch{}, err
	}
	list := []Batch{b}
	if err := s.count(ctx, list); err != nil {
		return Batch{}, err
	}
	return list[0], nil
}

// BatchFilter selects batches; zero fields match all.
type BatchFilter struct {
	Lane       Lane
	Pool, Kind string // one of the three: no index serves them together
}

// Batches returns up to limit batches with their counts, newest first, those
// below the id before (0 = from the newest).
func (s batches) Batches(ctx context.Context, f BatchFilter, before int64, limit int) ([]Batch, error) {
	text, args := f.page(before, limit)
	list, err := collect(ctx, s.read(), aroundDest, text, args...)
	if err != nil {
		return nil, err
	}
	return list, s.count(ctx, list)
}

// page names a lane in the text: urgent batches have an index of their own.
func (f BatchFilter) page(before int64, limit int) (text string, args []any) {
	q := query{text: aroundText}
	whereSet(&q, "b.id < %s", before)
	switch f.Lane {
	case LaneUrgent:
		q.conds = append(q.conds, `b.lane = 'urgent'`)
	case LaneNormal:
		q.conds = append(q.conds, `b.lane = 'normal'`)
	}
	order := "" // that of the index which has the batches of a pool, or of a kind, by their ids
	switch {
	case f.Pool != "":
		q.where("b.pool = %s", f.Pool)
		order = "b.pool DESC, "
	case f.Kind != "":
		q.where("b.kind = %s", f.Kind)
		order = "b.kind DESC, "
	}
	return q.end(` ORDER BY `+order+`b.id DESC`, limit)
}
