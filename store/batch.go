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

// batches is the part of the ledger that holds the batches, with the counts of their tasks.
type batches struct{ *connection }

// Batch is a set of tasks that an operator queued in one request. Its tasks share a pool, a kind and their rules. Package operators has the
// defaults of requests (batch_defaults.go).
type Batch struct {
	ID      int64
	Name    string
	Pool    string
	Kind    string
	Payload json.RawMessage `json:",omitempty"` // payload of the tasks that have none of their own; nil means no payload

	Priority int // priority of the tasks that have none of their own; tasks with a higher value go first
	Weight   int // share among the batches of a pool, at least 1
	Lane     Lane
	System   bool // the batch holds the leases of callers; operators cannot queue tasks into it

	NotBefore *time.Time // nil means that the tasks may start at once
	NotAfter  *time.Time // pending tasks expire at this time; nil means never

	MaxWait time.Duration // a task that does not start within this time after its creation, or after a later NotBefore, expires; 0 means no limit

	Windows      []Window // no windows mean always open
	FinishInside bool     // a task starts only if the windows of batch and pool stay open for longer than its lease
	Opening      Opening  // the present or the next period in which Windows are open

	Limits json.RawMessage `json:",omitempty"` // a valid JSON array of policies; nil means no policies

	MaxAttempts  int           // maximum number of counted attempts of a task, at least 1
	RetryOn      []string      // ends of attempts that are retried: "failed", "timed_out"
	RetryBackoff time.Duration // delay before the second attempt; it doubles with each attempt, with jitter
	OnLost       string        // "retry" or "fail": what happens to a task whose lease ended without a result
	Lease        time.Duration // 0 means the lease of the pool
	MaxRun       time.Duration // longest duration of a grant with all its renewals; 0 means 1 h
	Abort        *Abort        // nil means that no rule pauses the batch

	Paused      bool
	PausedBy    string
	PausedAt    *time.Time // nil if the batch is not paused, or was created paused
	PauseReason string
	CancelledAt *time.Time
	CreatedAt   time.Time
	ReadAt      time.Time // time of the database's clock when the batch was read

	Total        int64
	Skipped      int64               `json:",omitempty"` // number of NewTasks with Repeated, which were not queued; filled by CreateBatch only
	IsDeployment bool                `json:",omitempty"` // Payload is a DDI deployment; used by CreateBatch only
	WrongWire    int64               `json:",omitempty"` // tasks whose devices speak DDI although Payload is no deployment; filled by CreateBatch only
	Unknown      UnknownDevices      `json:",omitzero"`  // tasks whose devices are not registered; filled by CreateBatch only
	Counts       map[TaskState]int64 // exact number of tasks per state; the sum is Total. Filled by CreateBatch and when read with counts
	Recent       int64               // tasks that succeeded, failed or timed out in the last 5 min. Filled when a batch is read with its counts
	PoolSettings BatchPoolSettings   `json:"-"` // Filled when a batch is read with its counts
}

// BatchPoolSettings holds the settings of a batch's pool that decide whether a task can start.
type BatchPoolSettings struct {
	Paused   bool
	Capacity int
	Lease    time.Duration
	Opening  Opening
}

// Lane is normal or urgent. Urgent batches go before all other batches of their pool, for a share of the slots.
type Lane string

// The values of Lane. The ledger stores these texts.
const (
	LaneNormal Lane = "normal" // ordered by weight; an empty lane means LaneNormal
	LaneUrgent Lane = "urgent"
)

// UnknownDevices counts the tasks of a new batch whose devices are not registered.
type UnknownDevices struct {
	Tasks int64
	First string // device of the first task in Tasks; empty if all devices are registered
}

// taskPriority is the SQL priority of task t in batch b: the task's own priority or, if it has none, the present priority of the batch.
const taskPriority = `CASE WHEN t.own_priority THEN t.priority ELSE b.priority END`

// defaultMaxRun is the MaxRun of a batch for which no MaxRun is set.
const defaultMaxRun = time.Hour

const batchColumns = `b.id, b.name, b.pool, b.kind, b.payload, b.priority, b.weight, b.lane, b.not_before, b.not_after, b.max_wait_ms,
	b.max_attempts, b.retry_on, b.retry_backoff_ms, b.on_lost, b.lease_ms, b.max_run_ms, b.abort_failure, b.abort_min,
	b.windows, b.finish_inside, b.opens_at, b.closes_at, b.limits,
	b.paused, b.paused_by, b.paused_at, b.pause_reason, b.cancelled_at, b.created_at, b.total, b.system, {now}`

func batchScanDest(batch *Batch) (scanDest []any) {
	return []any{
		&batch.ID, &batch.Name, &batch.Pool, &batch.Kind, &batch.Payload, &batch.Priority, &batch.Weight, &batch.Lane, &batch.NotBefore,
		&batch.NotAfter, &batch.MaxWait, &batch.MaxAttempts,
		commaList{&batch.RetryOn},
		&batch.RetryBackoff, &batch.OnLost, &batch.Lease,
		&batch.MaxRun,
		abortRule{batch},
		abortRule{batch},
		&batch.Windows, &batch.FinishInside, &batch.Opening.From, &batch.Opening.Until,
		&batch.Limits, &batch.Paused, &batch.PausedBy, &batch.PausedAt, &batch.PauseReason, &batch.CancelledAt, &batch.CreatedAt,
		&batch.Total, &batch.System, &batch.ReadAt,
	}
}

const (
	batchAndPoolColumns = batchColumns + `, p.paused, p.capacity, p.lease_ms, p.opens_at, p.closes_at`
	selectBatchAndPool  = `SELECT ` + batchAndPoolColumns + ` FROM batches b JOIN pools p ON p.name = b.pool`
)

// batchAndPoolScanDest returns pointers to the fields of batch and of batch.PoolSettings for batchAndPoolColumns.
func batchAndPoolScanDest(batch *Batch) (scanDest []any) {
	return append(batchScanDest(batch), &batch.PoolSettings.Paused, &batch.PoolSettings.Capacity, &batch.PoolSettings.Lease, &batch.PoolSettings.Opening.From, &batch.PoolSettings.Opening.Until)
}

// CreateBatch creates a batch and queues all of newTasks in it, or changes nothing. It streams the tasks. An error of newTasks.Tasks is
// returned wrapped. Unless newTasks.RegisteredOnly is set, the devices need not be registered. An idempotency key in ctx (WithOnce) makes a
// repeated request take effect once. Errors: ErrUnknownPool, ErrUnknownDevice, ErrNoTasks.
func (s batches) CreateBatch(ctx context.Context, actor string, batch Batch, newTasks NewBatchTasks) (Batch, error) {
	leave, err := s.beginOnce(OnceFrom(ctx))
	defer leave()
	if err != nil {
		return Batch{}, fmt.Errorf("creating a batch: %w", err)
	}
	var created Batch
	var news pendingNews
	// writeOnce is used because the sequence of tasks can be read only once. write would run the function again after a deadlock.
	err = s.writeOnce(ctx, s.slow, func(plain *sqlx.Tx) error {
		tx := s.newSession(plain, &news)
		err := tx.runOnce(ctx, &created, func() (err error) {
			if created, err = s.createBatch(ctx, plain, tx, actor, batch, newTasks); err == nil && newTasks.DryRun {
				return errDryRun // rolls the transaction back
			}
			return err
		})
		if err != nil {
			return err
		}
		return tx.addNews(ctx)
	})
	s.notifyNews(ctx, news, err)
	if err != nil && !errors.Is(err, errDryRun) {
		return Batch{}, fmt.Errorf("creating a batch: %w", err)
	}
	created.Counts = map[TaskState]int64{}
	if created.Total > 0 {
		created.Counts[Pending] = created.Total
	}
	return created, nil
}

func insertBatch(ctx context.Context, tx session, batch Batch) (id int64, err error) {
	abort := Abort{}
	if batch.Abort != nil {
		abort = *batch.Abort
	}
	if err := tx.checkWindowsFit(ctx, batch); err != nil {
		return 0, err
	}
	o, err := tx.computeOpening(ctx, batch.Windows)
	if err != nil {
		return 0, err
	}
	err = tx.scanRow(ctx, []any{&id}, `
		INSERT INTO batches (name, pool, kind, payload, priority, weight, not_before, not_after, max_attempts,
			retry_on, retry_backoff_ms, on_lost, lease_ms, max_run_ms, paused, abort_failure, abort_min,
			windows, finish_inside, opens_at, closes_at, windows_due, limits, lane, max_wait_ms, wait_until, is_deployment, created_at)
		SELECT $1, p.name, $3, $4::json, $5, $6, {epoch} + $7 * {ms}, {epoch} + $8 * {ms}, $9, $10, $11, $12, $13, $14, $15, $16, $17,
			$18::json, $19, {epoch} + $20 * {ms}, {epoch} + $21 * {ms}, {epoch} + $22 * {ms}, $23::json, $24,
			CAST($25 AS bigint), CASE WHEN CAST($25 AS bigint) > 0 THEN
				CASE WHEN {epoch} + $7 * {ms} > {now} THEN {epoch} + $7 * {ms} ELSE {now} END + CAST($25 AS bigint) * {ms} END, $26, {now}
		FROM pools p WHERE p.name = $2 AND p.deleted_at IS NULL FOR KEY SHARE OF p
		RETURNING id`, batch.Name, batch.Pool, batch.Kind, jsonTextOrNull(batch.Payload), batch.Priority, max(batch.Weight, 1), millisOrNull(batch.NotBefore), millisOrNull(batch.NotAfter), max(batch.MaxAttempts, 1), strings.Join(batch.RetryOn, ","), batch.RetryBackoff.Milliseconds(), batch.OnLost, batch.Lease.Milliseconds(), batch.MaxRun.Milliseconds(), batch.Paused, abort.Failure, abort.Min, o.windows, batch.FinishInside, o.from, o.until, o.refreshDue, jsonTextOrNull(batch.Limits), cmp.Or(batch.Lane, LaneNormal), batch.MaxWait.Milliseconds(), batch.IsDeployment)
	if errors.Is(err, ErrNotFound) {
		return 0, fmt.Errorf("%w: %s", ErrUnknownPool, batch.Pool)
	}
	return id, err
}

// Batch returns one batch with its counts, or ErrNotFound.
func (s batches) Batch(ctx context.Context, id int64) (Batch, error) {
	b, err := queryOne(ctx, s.readSession(), batchAndPoolScanDest, selectBatchAndPool+` WHERE b.id = $1`, id)
	if err != nil {
		return Batch{}, err
	}
	list := []Batch{b}
	if err := s.fillCounts(ctx, list); err != nil {
		return Batch{}, err
	}
	return list[0], nil
}

// BatchFilter selects batches. A field with its zero value does not restrict the selection.
type BatchFilter struct {
	Lane       Lane
	Pool, Kind string // set at most one of Lane, Pool and Kind: no index serves a combination
	// State and Order may be combined with Pool, but not with each other. Both are as of the last fold, some seconds ago.
	State string // open (not ended), or a state of the API
	Order BatchOrder
}

// BatchOrder is the column by which batches are sorted, the highest value first. An empty BatchOrder means that they are sorted by id.
type BatchOrder string

// ByFailures also restricts the list to batches with failed or timed-out tasks, and ByEnd to batches that have ended.
const (
	ByFailures BatchOrder = "failed_tasks"
	ByEnd      BatchOrder = "ended_at"
)

// batchStateConditionSQL returns the condition that batch b is in state. The database uses a partial index only if the condition has exactly
// the text of the index.
func batchStateConditionSQL(state string) string {
	const open, started = `b.ended_at IS NULL AND b.cancelled_at IS NULL`, `(b.not_before IS NULL OR b.not_before <= {now})`
	return map[string]string{
		"open": `b.ended_at IS NULL`, "cancelling": `b.ended_at IS NULL AND b.cancelled_at IS NOT NULL`,
		"paused": open + ` AND b.paused IS TRUE`, "running": open + ` AND b.paused IS FALSE AND ` + started, "scheduled": open + ` AND b.paused IS FALSE AND NOT ` + started,
		"finished": `b.ended_at IS NOT NULL AND b.cancelled_at IS NULL`, "cancelled": `b.ended_at IS NOT NULL AND b.cancelled_at IS NOT NULL`,
	}[state]
}

// batchOrderConditionSQL returns the condition on batch b under which the database can use the partial index for order.
func batchOrderConditionSQL(order BatchOrder) string {
	return map[BatchOrder]string{ByFailures: `b.failed_tasks > 0`, ByEnd: `b.ended_at IS NOT NULL`}[order]
}

// Batches returns at most limit batches that match filter, with their counts, in the order of the filter. If beforeID is not 0, it returns
// only batches that follow the batch with this id in this order. With the newest first, these are the batches with id < beforeID.
func (s batches) Batches(ctx context.Context, filter BatchFilter, beforeID int64, limit int) ([]Batch, error) {
	text, args := filter.pageSQL(beforeID, limit)
	list, err := collect(ctx, s.readSession(), batchAndPoolScanDest, text, args...)
	if err != nil {
		return nil, err
	}
	return list, s.fillCounts(ctx, list)
}

// pageSQL returns the statement of Batches. The lane is a literal in it, because with an argument Postgres would not use the partial index
// of urgent batches.
func (f BatchFilter) pageSQL(beforeID int64, limit int) (text string, args []any) {
	q := query{text: selectBatchAndPool}
	order := "" // the first columns of the index that serves the filter, such as (pool, id) or (kind, id)
	if f.Order == "" {
		whereIfSet(&q, "b.id < %s", beforeID)
	} else {
		column := "b." + string(f.Order)
		order = column + " DESC, "
		whereIfSet(&q, "("+column+", b.id) < ((SELECT "+column+" FROM batches b WHERE b.id = %[1]s), %[1]s)", beforeID)
	}
	switch {
	case f.State != "":
		q.conds = append(q.conds, batchStateConditionSQL(f.State))
	case f.Order != "":
		q.conds = append(q.conds, batchOrderConditionSQL(f.Order))
	}
	switch f.Lane {
	case LaneUrgent:
		q.conds = append(q.conds, `b.lane = 'urgent'`)
	case LaneNormal:
		q.conds = append(q.conds, `b.lane = 'normal'`)
	}
	switch {
	case f.Pool != "":
		q.where("b.pool = %s", f.Pool)
		order = "b.pool DESC, " + order
	case f.Kind != "":
		q.where("b.kind = %s", f.Kind)
		order = "b.kind DESC, "
	}
	return q.build(` ORDER BY `+order+`b.id DESC`, limit)
}
