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

// A lease of a caller, which is a program and no device, is a task that nobody queued, in a
// batch of the system, for a device that no device can be.

// callerMark begins the names of callers' holders. No device id has it.
const callerMark = "@"

// Holder names a holder of a caller where devices are named. The name of the caller is escaped:
// no two holders have one name, and no separator of Redis is in it.
func Holder(caller, holder string) string {
	return callerMark + url.PathEscape(caller) + "/" + holder
}

// CallerOf are the names of the caller and of the holder that a device is; empty: it is none.
func CallerOf(device string) (caller, holder string) {
	name, _ := HolderName(device)
	caller, holder, _ = strings.Cut(name, "/")
	if plain, err := url.PathUnescape(caller); err == nil {
		caller = plain
	}
	return caller, holder
}

// HolderName is what people are shown of a holder: its name without the mark; is: it is a caller's.
func HolderName(device string) (name string, is bool) { return strings.CutPrefix(device, callerMark) }

// IsCaller says whether a device is the holder of a caller.
func IsCaller(device string) bool { return strings.HasPrefix(device, callerMark) }

// Stay is how long a caller that waits keeps its position after each answer; Returns is how
// soon it is to ask again, so that none behind it goes first.
const (
	Stay    = time.Minute
	Returns = 2 * time.Second
)

// The batches of leases: one takes the leases of a pool for a day, so that old ones go.
const (
	LeaseBatch = "callers"
	LeaseKind  = "lease"

	leaseDay     = 24 * time.Hour
	leaseMaxRun  = 7 * 24 * time.Hour // as long as a batch may say
	leaseBatches = 3                  // the newest, in which callers may still wait
)

// NewLease is a lease that a holder asks for.
type NewLease struct {
	Pool     string
	Holder   string          // see Holder
	Lease    time.Duration   // 0: the pool's
	Metadata json.RawMessage // nil: none
	Stay     time.Duration   // it is given up then, unless it was granted or is asked for again
}

// LeaseTask is the task of a lease that is open.
type LeaseTask struct {
	Task    int64
	New     bool
	Bounded bool      // callers of its pool hold so many slots at most
	Until   time.Time // it waits until then; of one that is held it says nothing
}

// OpenLease returns the open lease of a holder, and makes one if there is none. One that waits
// stays from now on as long as is asked for, unless it stays longer. ErrUnknownPool; ErrExists: the
// holder has a lease in another pool.
func (s grants) OpenLease(ctx context.Context, n NewLease) (task LeaseTask, err error) {
	err = s.write(ctx, func(tx session) (err error) {
		task, err = tx.leases().open(ctx, n)
		return err
	})
	if err != nil {
		return LeaseTask{}, fmt.Errorf("opening a lease in pool %s: %w", n.Pool, err)
	}
	return task, nil
}

func (s leasesIn) open(ctx context.Context, n NewLease) (LeaseTask, error) {
	// A holder has one lease: its requests come one after the other.
	if err := s.pools().lock(ctx, n.Holder); err != nil {
		return LeaseTask{}, err
	}
	var now time.Time
	var bounded bool
	err := s.rowOf(ctx, `SELECT {now}, p.callers IS NOT NULL FROM pools p WHERE p.name = $1 AND p.deleted_at IS NULL {share p}`, []any{n.Pool}, instant{&now}, &bounded)
	if errors.Is(err, ErrNotFound) {
		return LeaseTask{}, ErrUnknownPool
	}
	if err != nil {
		return LeaseTask{}, err
	}
	until := now.Add(n.Stay).Truncate(time.Millisecond)
	found, err := s.ofHolder(ctx, n, until)
	found.Bounded = bounded
	if !errors.Is(err, ErrNotFound) {
		return found, err
	}
	batch, err := s.batchOf(ctx, n.Pool)
	if err != nil {
		return LeaseTask{}, err
	}
	task, err := one(ctx, s.session, only[int64], `
		INSERT INTO tasks (batch, pool, device, own_priority, payload, lease_ms, not_after)
		VALUES ($1, $2, $3, FALSE, $4{json}, $5, {epoch} + $6 * {ms}) RETURNING id`,
		batch, n.Pool, n.Holder, nullText(n.Metadata), nullLease(n.Lease), until.UnixMilli())
	return LeaseTask{Task: task, New: true, Bounded: bounded, Until: until}, err
}

// nullLease leaves the length of a lease to the pool.
func nullLease(lease time.Duration) any {
	if lease == 0 {
		return nil
	}
	return lease.Milliseconds()
}

// ofHolder is the open lease of the holder; ErrNotFound.
func (s leasesIn) ofHolder(ctx context.Context, n NewLease, until time.Time) (LeaseTask, error) {
	type reading struct {
		LeaseTask
		pool string
		held bool
	}
	r, err := one(ctx, s.session, func(r *reading) []any { return []any{&r.Task, &r.pool, instant{&r.Until}, &r.held} }, `
		SELECT t.id, t.pool, t.not_after, EXISTS (SELECT 1 FROM grants g WHERE g.task = t.id)
		FROM tasks t WHERE t.device = $1 AND t.state = 'pending' ORDER BY t.id LIMIT 1 {lock t}`, n.Holder)
	switch {
	case err != nil:
		return LeaseTask{}, err
	case r.pool != n.Pool:
		return LeaseTask{}, fmt.Errorf("%w: in pool %s", ErrExists, r.pool)
	case r.held:
		return r.LeaseTask, nil
	case r.Until.Before(until):
		r.Until = until
	default: // each request has a time of its own, by which StayLease and DropLease know the last one
		r.Until = r.Until.Add(time.Millisecond)
	}
	_, err = s.exec(ctx, `UPDATE tasks SET not_after = {epoch} + $2 * {ms} WHERE id = $1`, r.Task, r.Until.UnixMilli())
	return r.LeaseTask, err
}

// batchOf is the batch that takes one more lease of a pool. Only leases are counted where they
// are made: nobody queues into such a batch.
func (s leasesIn) batchOf(ctx context.Context, pool string) (int64, error) {
	take := func() (int64, error) {
		return one(ctx, s.session, only[int64], `
			UPDATE batches SET total = total + 1
			WHERE cancelled_at IS NULL AND (not_after IS NULL OR not_after > {now} + $3 * {ms}) AND created_at > {now} - $2 * {ms} AND id = (
				SELECT id FROM batches WHERE pool = $1 AND system ORDER BY id DESC LIMIT 1)
			RETURNING id`, pool, leaseDay.Milliseconds(), Stay.Milliseconds())
	}
	batch, err := take()
	if !errors.Is(err, ErrNotFound) {
		return batch, err
	}
	if err := s.pools().lock(ctx, callerMark+pool+"/"); err != nil { // one of those who found none makes it
		return 0, err
	}
	if batch, err = take(); errors.Is(err, ErrNotFound) {
		batch, err = s.newBatch(ctx, pool)
	}
	return batch, err
}

// newBatch makes the batch of the next day, with what operators set for the one before.
func (s leasesIn) newBatch(ctx context.Context, pool string) (batch int64, err error) {
	err = s.rowOf(ctx, `
		INSERT INTO batches (name, pool, kind, on_lost, max_run_ms, created_at, total, system,
			priority, weight, lane, windows, finish_inside, opens_at, closes_at, windows_due, limits, paused, paused_by, paused_at, pause_reason)
		SELECT $2, p.name, $3, 'fail', $4, {now}, 1, TRUE,
			coalesce(b.priority, 0), coalesce(b.weight, 1), coalesce(b.lane, 'normal'), b.windows, coalesce(b.finish_inside, TRUE),
			b.opens_at, b.closes_at, b.windows_due, b.limits, coalesce(b.paused, FALSE), coalesce(b.paused_by, ''), b.paused_at, coalesce(b.pause_reason, '')
		FROM pools p LEFT JOIN batches b ON b.id = (SELECT max(id) FROM batches WHERE pool = $1 AND system AND cancelled_at IS NULL)
		WHERE p.name = $1 RETURNING id`, []any{pool, LeaseBatch, LeaseKind, leaseMaxRun.Milliseconds()}, &batch)
	if err != nil {
		return 0, fmt.Errorf("making the batch of the leases: %w", err)
	}
	return batch, s.record(ctx, Event{Kind: "batch.created", Actor: systemActor, Pool: pool, Batch: batch, Detail: "leases of callers"})
}

// systemActor is who makes the batches of leases.
const systemActor = "dispatcher"

// DropLease takes a lease back that was made to try once, with all that was written of it, and
// says whether it did: it may have been granted meanwhile, or be asked for again.
func (s grants) DropLease(ctx context.Context, task LeaseTask) (dropped bool, err error) {
	err = s.write(ctx, func(tx session) (err error) {
		dropped, err = tx.leases().drop(ctx, task)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("taking lease %d back: %w", task.Task, err)
	}
	return dropped, nil
}

func (s leasesIn) drop(ctx context.Context, task LeaseTask) (bool, error) {
	batch, err := one(ctx, s.session, only[int64], `
		SELECT batch FROM tasks t WHERE id = $1 AND state = 'pending' AND not_after = {epoch} + $2 * {ms} {lock t}`, task.Task, task.Until.UnixMilli())
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	// A statement of its own: it sees a grant that the lock was waited for.
	n, err := s.exec(ctx, `DELETE FROM tasks WHERE id = $1 AND NOT EXISTS (SELECT 1 FROM grants g WHERE g.task = tasks.id)`, task.Task)
	if err != nil || n == 0 {
		return false, err
	}
	_, err = s.exec(ctx, `UPDATE batches SET total = total - 1 WHERE id = $1`, batch)
	return err == nil, err
}

// StayLease lets a lease that waits stay for no longer than this, unless it was asked for again
// since it was opened as task says.
func (s grants) StayLease(ctx context.Context, task LeaseTask, stay time.Duration) error {
	err := s.write(ctx, func(tx session) error {
		_, err := tx.exec(ctx, `UPDATE tasks SET not_after = {now} + $3 * {ms} WHERE id = $1 AND state = 'pending' AND not_after = {epoch} + $2 * {ms}`,
			task.Task, task.Until.UnixMilli(), stay.Milliseconds())
		return err
	})
	if err != nil {
		return fmt.Errorf("lease %d of a caller that left: %w", task.Task, err)
	}
	return nil
}

// StepAside lets callers behind one that waits go first, and says whether it stood before them: it
// keeps its position for Stay, but for the moment in which it would count as asking, until
// OpenLease asks again.
func (s grants) StepAside(ctx context.Context, task int64) (stood bool, err error) {
	err = s.write(ctx, func(tx session) error {
		n, err := tx.exec(ctx, `UPDATE tasks SET not_after = {now} + $2 * {ms} WHERE id = $1 AND state = 'pending' AND not_after > {now} + $2 * {ms}`,
			task, (Stay - Returns).Milliseconds())
		if stood = n > 0; err != nil || stood {
			return err
		}
		// One that was only tried is there for less, and is dropped as it was made.
		_, err = tx.exec(ctx, `UPDATE tasks SET not_after = {now} + $2 * {ms} WHERE id = $1 AND state = 'pending' AND not_after > {now} + $3 * {ms}`,
			task, (Stay - Returns).Milliseconds(), (Stay / 2).Milliseconds())
		return err
	})
	if err != nil {
		return false, fmt.Errorf("lease %d steps aside: %w", task, err)
	}
	return stood, nil
}

// GiveUpLease ends a lease that waits, and says whether it is held instead: then nothing is changed.
func (s grants) GiveUpLease(ctx context.Context, actor string, task int64) (held bool, err error) {
	err = s.write(ctx, func(tx session) (err error) {
		if _, err := tx.exec(ctx, `SELECT t.id FROM tasks t WHERE t.id = $1 {lock t}`, task); err != nil {
			return err
		}
		gone, err := tx.tasks().endLocked(ctx, waitingEnd{state: Cancelled, actor: actor}, []end{{Task: task}})
		if err != nil || len(gone) > 0 {
			return err
		}
		held, err = one(ctx, tx, only[bool], `SELECT EXISTS (SELECT 1 FROM grants g WHERE g.task = $1)`, task)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("giving lease %d up: %w", task, err)
	}
	return held, nil
}

// LeaseFilter selects leases of a pool.
type LeaseFilter struct {
	Pool   string
	Caller string // empty: all callers
	After  string // holders behind this one, as Holder names them
	Limit  int
}

// HeldLease is a lease that is held or waits.
type HeldLease struct {
	Task
	Grant Grant // zero: it waits
}

// Leases returns those that are open, by their holders.
func (s grants) Leases(ctx context.Context, f LeaseFilter) ([]HeldLease, error) {
	from, until := callerMark, "A"
	if f.Caller != "" {
		from = Holder(f.Caller, "")
		until = strings.TrimSuffix(from, "/") + "0" // what follows the separator
	}
	return collect(ctx, s.read(), func(l *HeldLease) []any { return append(taskDest(&l.Task), grantDest(&l.Grant)...) },
		leasesText(), f.Pool, max(from, f.After), until, clampLimit(f.Limit))
}

func leasesText() string {
	return `
	SELECT ` + taskColumns + `, ` + grantColumns + `
	FROM (SELECT id, device FROM tasks WHERE pool = $1 AND state = 'pending' AND device > $2 AND device < $3 ORDER BY device LIMIT $4) AS w
		{task w} {batch of t} {grant of t}
	ORDER BY t.device`
}
