package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// A caller is a program. Its lease is stored as a task of a batch with System set, for a device name that no real device can have.

// callerPrefix begins the device name under which a holder of a caller is stored. No device id begins with it.
const callerPrefix = "@"

// HolderDevice returns the device name under which a holder of a caller is stored. The name of the caller is escaped, so that device names
// are unique and contain no separator of Redis keys.
func HolderDevice(caller, holder string) string {
	return callerPrefix + url.PathEscape(caller) + "/" + holder
}

// CallerAndHolder splits a name that HolderDevice returned into caller and holder.
func CallerAndHolder(device string) (caller, holder string) {
	name, _ := HolderName(device)
	caller, holder, _ = strings.Cut(name, "/")
	if plain, err := url.PathUnescape(caller); err == nil {
		caller = plain
	}
	return caller, holder
}

// HolderName returns device without callerPrefix, for display. isCaller is false if device is not a holder of a caller.
func HolderName(device string) (name string, isCaller bool) {
	return strings.CutPrefix(device, callerPrefix)
}

// IsCaller reports whether device is a holder of a caller.
func IsCaller(device string) bool { return strings.HasPrefix(device, callerPrefix) }

// PositionTTL is the time for which a waiting caller keeps its position after each answer. If the caller does not ask again within
// AskAgainWithin, the callers behind it may go first.
const (
	PositionTTL    = time.Minute
	AskAgainWithin = 2 * time.Second
)

// Each batch of leases has the name LeaseBatch and the kind LeaseKind. A pool gets a new batch of leases each day, so that old batches end
// and are deleted.
const (
	LeaseBatch = "callers"
	LeaseKind  = "lease"

	leaseDay     = 24 * time.Hour
	leaseMaxRun  = 7 * 24 * time.Hour // the maximum MaxRun of a batch
	leaseBatches = 3                  // callers may wait only in this number of the newest batches of leases
)

// NewLease is a request of a holder for a lease.
type NewLease struct {
	Pool     string
	Holder   string          // name of the holder, as HolderDevice returns it
	Lease    time.Duration   // 0 means the lease of the pool
	Metadata json.RawMessage // nil means no metadata
	WaitFor  time.Duration   // how long the lease waits for a slot if the request is not repeated
}

// LeaseTask is the open task that stores a lease.
type LeaseTask struct {
	Task           int64
	Created        bool
	HasCallerBound bool      // the pool limits the number of slots that callers hold
	WaitsUntil     time.Time // time until which the lease waits for a slot; not valid if the lease holds a slot
}

// OpenLease returns the open lease of a holder, or creates one. A lease without a slot waits for at least request.WaitFor from now. Errors:
// ErrUnknownPool, ErrExists if the holder has a lease in another pool.
func (s grants) OpenLease(ctx context.Context, request NewLease) (task LeaseTask, err error) {
	defer wrapError(&err, "opening a lease in pool %s", request.Pool)
	return inTx(ctx, s.connection, func(tx session) (LeaseTask, error) { return tx.openLease(ctx, request) })
}

func (s session) openLease(ctx context.Context, request NewLease) (LeaseTask, error) {
	// The lock makes the requests of a holder run one after another, because a holder has at most one lease.
	if err := s.lockNameExclusively(ctx, request.Holder); err != nil {
		return LeaseTask{}, err
	}
	var now time.Time
	var bounded bool
	err := s.scanRow(ctx, []any{&now, &bounded}, `SELECT {now}, p.callers IS NOT NULL FROM pools p WHERE p.name = $1 AND p.deleted_at IS NULL FOR KEY SHARE OF p`, request.Pool)
	if errors.Is(err, ErrNotFound) {
		return LeaseTask{}, ErrUnknownPool
	}
	if err != nil {
		return LeaseTask{}, err
	}
	until := now.Add(request.WaitFor).Truncate(time.Millisecond)
	found, err := s.extendOpenLease(ctx, request, until)
	found.HasCallerBound = bounded
	if !errors.Is(err, ErrNotFound) {
		return found, err
	}
	batch, err := s.addToLeaseBatch(ctx, request.Pool)
	if err != nil {
		return LeaseTask{}, err
	}
	task, err := queryOne(ctx, s, singleColumn[int64], `
		INSERT INTO tasks (batch, pool, device, own_priority, payload, lease_ms, not_after)
		VALUES ($1, $2, $3, FALSE, $4::json, $5, {epoch} + $6 * {ms}) RETURNING id`,
		batch, request.Pool, request.Holder, jsonTextOrNull(request.Metadata), leaseMillisOrNull(request.Lease), until.UnixMilli())
	return LeaseTask{Task: task, Created: true, HasCallerBound: bounded, WaitsUntil: until}, err
}

// leaseMillisOrNull returns lease as the argument for lease_ms. A lease of 0 becomes NULL, which means the lease length of the pool.
func leaseMillisOrNull(lease time.Duration) any {
	if lease == 0 {
		return nil
	}
	return lease.Milliseconds()
}

// extendOpenLease returns the open lease of the holder, or ErrNotFound. If the lease waits for a slot, its wait is extended to the time
// `until`. Error: ErrExists if the lease is in another pool.
func (s session) extendOpenLease(ctx context.Context, request NewLease, until time.Time) (LeaseTask, error) {
	type reading struct {
		LeaseTask
		pool string
		held bool
	}
	r, err := queryOne(ctx, s, func(r *reading) []any { return []any{&r.Task, &r.pool, &r.WaitsUntil, &r.held} }, `
		SELECT t.id, t.pool, t.not_after, EXISTS (SELECT 1 FROM grants g WHERE g.task = t.id)
		FROM tasks t WHERE t.device = $1 AND t.state = 'pending' ORDER BY t.id LIMIT 1 FOR UPDATE OF t`, request.Holder)
	switch {
	case err != nil:
		return LeaseTask{}, err
	case r.pool != request.Pool:
		return LeaseTask{}, fmt.Errorf("%w in pool %s", ErrExists, r.pool)
	case r.held:
		return r.LeaseTask, nil
	case r.WaitsUntil.Before(until):
		r.WaitsUntil = until
	default: // each request must store a different time, because SetLeaseWait and DropLease compare it to detect a later one
		r.WaitsUntil = r.WaitsUntil.Add(time.Millisecond)
	}
	_, err = s.exec(ctx, `UPDATE tasks SET not_after = {epoch} + $2 * {ms} WHERE id = $1`, r.Task, r.WaitsUntil.UnixMilli())
	return r.LeaseTask, err
}

// addToLeaseBatch adds 1 to the total of the newest batch of leases of a pool, and returns the id of the batch. If this batch is too old or
// ended, addToLeaseBatch creates a new batch. Only addToLeaseBatch and dropLease change this total, because operators cannot queue tasks there.
func (s session) addToLeaseBatch(ctx context.Context, pool string) (batchID int64, err error) {
	addToNewest := func() (int64, error) {
		return queryOne(ctx, s, singleColumn[int64], `
			UPDATE batches SET total = total + 1, ended_at = NULL
			WHERE cancelled_at IS NULL AND (not_after IS NULL OR not_after > {now} + $3 * {ms}) AND created_at > {now} - $2 * {ms} AND id = (
				SELECT id FROM batches WHERE pool = $1 AND system ORDER BY id DESC LIMIT 1)
			RETURNING id`, pool, leaseDay.Milliseconds(), PositionTTL.Milliseconds())
	}
	batch, err := addToNewest()
	if !errors.Is(err, ErrNotFound) {
		return batch, err
	}
	if err := s.lockNameExclusively(ctx, callerPrefix+pool+"/"); err != nil { // only the first transaction creates a batch
		return 0, err
	}
	if batch, err = addToNewest(); errors.Is(err, ErrNotFound) {
		batch, err = s.newLeaseBatch(ctx, pool)
	}
	return batch, err
}

// newLeaseBatch creates the batch for the leases of a new day. It copies the settings of the previous batch of leases, because operators
// may have changed them.
func (s session) newLeaseBatch(ctx context.Context, pool string) (batch int64, err error) {
	err = s.scanRow(ctx, []any{&batch}, `
		INSERT INTO batches (name, pool, kind, on_lost, max_run_ms, created_at, total, system,
			priority, weight, lane, windows, finish_inside, opens_at, closes_at, windows_due, limits, paused, paused_by, paused_at, pause_reason)
		SELECT $2, p.name, $3, 'fail', $4, {now}, 1, TRUE,
			coalesce(b.priority, 0), coalesce(b.weight, 1), coalesce(b.lane, 'normal'), b.windows, coalesce(b.finish_inside, TRUE),
			b.opens_at, b.closes_at, b.windows_due, b.limits, coalesce(b.paused, FALSE), coalesce(b.paused_by, ''), b.paused_at, coalesce(b.pause_reason, '')
		FROM pools p LEFT JOIN batches b ON b.id = (SELECT max(id) FROM batches WHERE pool = $1 AND system AND cancelled_at IS NULL)
		WHERE p.name = $1 RETURNING id`, pool, LeaseBatch, LeaseKind, leaseMaxRun.Milliseconds())
	if err != nil {
		return 0, fmt.Errorf("creating the batch of the leases: %w", err)
	}
	return batch, s.recordEvent(ctx, Event{Kind: "batch.created", Actor: systemActor, Pool: pool, Batch: batch, Detail: "leases of callers"})
}

// systemActor is the actor that creates the batches of leases.
const systemActor = "dispatcher"

// DropLease deletes a lease that a caller opened for a single attempt to get a slot. If the lease was granted, or requested again, after
// OpenLease returned it, nothing changes and dropped is false.
func (s grants) DropLease(ctx context.Context, lease LeaseTask) (dropped bool, err error) {
	defer wrapError(&err, "withdrawing lease %d", lease.Task)
	return inTx(ctx, s.connection, func(tx session) (bool, error) { return tx.dropLease(ctx, lease) })
}

func (s session) dropLease(ctx context.Context, lease LeaseTask) (dropped bool, err error) {
	batch, err := queryOne(ctx, s, singleColumn[int64], `
		SELECT batch FROM tasks t WHERE id = $1 AND state = 'pending' AND not_after = {epoch} + $2 * {ms} FOR UPDATE OF t`, lease.Task, lease.WaitsUntil.UnixMilli())
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	// The SELECT may have waited for a concurrent claim of the task, and does not see the grant of this claim. The DELETE is a later
	// statement, so it sees the grant.
	n, err := s.exec(ctx, `DELETE FROM tasks WHERE id = $1 AND NOT EXISTS (SELECT 1 FROM grants g WHERE g.task = tasks.id)`, lease.Task)
	if err != nil || n == 0 {
		return false, err
	}
	_, err = s.exec(ctx, `UPDATE batches SET total = total - 1 WHERE id = $1`, batch)
	return err == nil, err
}

// SetLeaseWait lets a waiting lease wait for a slot until waitFor from now. If the lease was requested again after OpenLease returned it,
// nothing changes.
func (s grants) SetLeaseWait(ctx context.Context, lease LeaseTask, waitFor time.Duration) (err error) {
	defer wrapError(&err, "extending the wait of lease %d", lease.Task)
	_, err = s.execInTx(ctx, `UPDATE tasks SET not_after = {now} + $3 * {ms} WHERE id = $1 AND state = 'pending' AND not_after = {epoch} + $2 * {ms}`,
		lease.Task, lease.WaitsUntil.UnixMilli(), waitFor.Milliseconds())
	return err
}

// YieldPlace lets the callers behind a waiting lease go first, until OpenLease is called again for this lease. taskID is the task of the
// lease. The lease keeps its position for PositionTTL - AskAgainWithin. yielded is false if the callers behind the lease were already
// allowed to go first.
func (s grants) YieldPlace(ctx context.Context, taskID int64) (yielded bool, err error) {
	defer wrapError(&err, "yielding the place of lease %d", taskID)
	err = s.write(ctx, func(tx session) error {
		n, err := tx.exec(ctx, `UPDATE tasks SET not_after = {now} + $2 * {ms} WHERE id = $1 AND state = 'pending' AND not_after > {now} + $2 * {ms}`,
			taskID, (PositionTTL - AskAgainWithin).Milliseconds())
		if yielded = n > 0; err != nil || yielded {
			return err
		}
		// The not_after of a lease that was requested without a wait is less than PositionTTL / 2 from now. This statement must not change that
		// not_after, because DropLease deletes the lease only if its not_after is unchanged.
		_, err = tx.exec(ctx, `UPDATE tasks SET not_after = {now} + $2 * {ms} WHERE id = $1 AND state = 'pending' AND not_after > {now} + $3 * {ms}`,
			taskID, (PositionTTL - AskAgainWithin).Milliseconds(), (PositionTTL / 2).Milliseconds())
		return err
	})
	return yielded, err
}

// GiveUpLease ends the waiting lease of task. If the lease holds a slot, nothing changes and isHeld is true.
func (s grants) GiveUpLease(ctx context.Context, actor string, task int64) (isHeld bool, err error) {
	defer wrapError(&err, "giving up lease %d", task)
	err = s.write(ctx, func(tx session) (err error) {
		if _, err := tx.exec(ctx, `SELECT t.id FROM tasks t WHERE t.id = $1 FOR UPDATE OF t`, task); err != nil {
			return err
		}
		ended, err := tx.endLockedTasks(ctx, waitingEndRule{state: Cancelled, actor: actor}, []taskEnd{{Task: task}})
		if err != nil || len(ended) > 0 {
			return err
		}
		isHeld, err = queryOne(ctx, tx, singleColumn[bool], `SELECT EXISTS (SELECT 1 FROM grants g WHERE g.task = $1)`, task)
		return err
	})
	return isHeld, err
}

// LeaseFilter selects leases of a pool.
type LeaseFilter struct {
	Pool   string
	Caller string // empty means all callers
	After  string // only holders whose name, as HolderDevice returns it, is greater
	Limit  int
}

// CallerLease is an open lease of a caller: it holds a slot or waits for one.
type CallerLease struct {
	Task
	Grant Grant // the grant of the lease; the zero value if the lease waits
}

// Leases returns the open leases that match filter, in the order of their holders.
func (s grants) Leases(ctx context.Context, filter LeaseFilter) ([]CallerLease, error) {
	from, until := callerPrefix, "A"
	if filter.Caller != "" {
		from = HolderDevice(filter.Caller, "")
		until = strings.TrimSuffix(from, "/") + "0" // 0 is the character after the separator /
	}
	return collect(ctx, s.readSession(), func(l *CallerLease) []any { return append(taskScanDest(&l.Task), grantScanDest(&l.Grant)...) },
		leasesSQL(), filter.Pool, max(from, filter.After), until, clampLimit(filter.Limit))
}

func leasesSQL() string {
	return `
	SELECT ` + taskColumns + `, ` + grantColumns + `
	FROM (SELECT id, device FROM tasks WHERE pool = $1 AND state = 'pending' AND device > $2 AND device < $3 ORDER BY device LIMIT $4) AS w
		{task w} {batch of t} {grant of t}
	ORDER BY t.device`
}
