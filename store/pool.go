package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// pools holds the pools, their occupied slots and their history.
type pools struct{ *connection }

// Pool is a set of Capacity slots, numbered 0..Capacity-1.
type Pool struct {
	Name        string
	Capacity    int             // number of slots, 0..10000; a pool with 0 slots grants nothing
	Lease       time.Duration   // 1 s..24 h; a batch can set another lease
	Paused      bool            // while a pool is paused, nothing is granted
	PausedBy    string          // empty if the pool is not paused
	PausedAt    *time.Time      // nil if the pool is not paused
	PauseReason string          // may be empty
	Windows     []Window        // no windows mean always open
	Opening     Opening         // the present or the next period in which Windows are open
	Limits      json.RawMessage // a valid JSON array of policies; nil means no policies
	Callers     *int            // maximum number of slots that callers hold; nil means no bound
	Longest     time.Duration   // the longest lease that a caller may request
	Sleep       time.Duration   // the longest time until a device that waits for a slot is asked to report again, see slots.Pace
	StandsUntil time.Time       // after a restore the pool grants nothing before this time; zero means that the pool may grant
	Version     int64           // increases with every change
	CreatedAt   time.Time
	UpdatedAt   time.Time
}

// PoolSpec holds the settings of a pool that an operator decides.
type PoolSpec struct {
	Capacity int           // 0..10000
	Lease    time.Duration // more than 0
	Paused   bool
	Windows  []Window        // must be valid
	Limits   json.RawMessage // must be valid; nil means no policies
	Callers  *int            // 0..10000; nil means no bound
	Longest  time.Duration   // the longest lease that a caller may request; 0 means DefaultLongestLease
	Sleep    time.Duration   // as in Pool; 0 means DefaultLongestSleep
	DryRun   bool            // check everything and change nothing
}

// These are the settings of a pool for which the operator sets no value.
const (
	DefaultLongestLease = 24 * time.Hour   // the longest lease that a caller may request
	DefaultLongestSleep = 10 * time.Minute // the longest time until a device that waits for a slot is asked to report again
)

const poolColumns = `name, capacity, lease_ms, paused, paused_by, paused_at, pause_reason, windows, opens_at, closes_at, limits, callers, longest_ms, sleep_ms,
	CASE WHEN stands_until > {now} THEN stands_until END AS stands_until, version, created_at, updated_at`

func poolScanDest(pool *Pool) (scanDest []any) {
	return []any{
		&pool.Name, &pool.Capacity, &pool.Lease, &pool.Paused, &pool.PausedBy, &pool.PausedAt, &pool.PauseReason, &pool.Windows,
		&pool.Opening.From, &pool.Opening.Until, &pool.Limits, &pool.Callers, &pool.Longest, &pool.Sleep, &pool.StandsUntil, &pool.Version,
		&pool.CreatedAt, &pool.UpdatedAt,
	}
}

// Pool returns one pool, or ErrNotFound.
func (s pools) Pool(ctx context.Context, name string) (Pool, error) {
	return s.readSession().poolByName(ctx, name)
}

func (s session) poolByName(ctx context.Context, name string) (Pool, error) {
	return queryOne(ctx, s, poolScanDest, `SELECT `+poolColumns+` FROM pools WHERE name = $1 AND deleted_at IS NULL`, name)
}

// Pools returns at most limit pools with a name > afterName, in the order of names.
func (s pools) Pools(ctx context.Context, afterName string, limit int) ([]Pool, error) {
	return collect(ctx, s.readSession(), poolScanDest,
		`SELECT `+poolColumns+` FROM pools WHERE name > $1 AND deleted_at IS NULL ORDER BY name LIMIT $2`, afterName, limit)
}

// ChangedPools returns the pools that were changed within a duration (within) before now. The time of a change is the time of its statement, not
// of its commit.
func (s pools) ChangedPools(ctx context.Context, within time.Duration) ([]Pool, error) {
	// The sub-select makes Postgres read the clock once for the whole statement, so that it can use the index on updated_at.
	return collect(ctx, s.readSession(), poolScanDest,
		`SELECT `+poolColumns+` FROM pools WHERE updated_at >= (SELECT {now}) - $1 * {ms} AND deleted_at IS NULL ORDER BY name`, within.Milliseconds())
}

// PutPool creates the pool or changes its settings to spec. created is true if the pool is new. If nothing changes, the version stays.
func (s pools) PutPool(ctx context.Context, actor, name string, spec PoolSpec) (pool Pool, created bool, err error) {
	err = s.withLockedPool(ctx, name, func(tx session, old *Pool) error {
		pool, created, err = putPool(ctx, tx, actor, name, old, spec, "")
		return err
	})
	if err != nil {
		return Pool{}, false, err
	}
	return pool, created, nil
}

// ChangePool calls change with the settings of a pool, stores the changed settings and returns the pool. It stores reason, which may be
// empty, in the audit log, and as the reason of a pause. change may run more than once. If it returns an error, nothing is changed. Error:
// ErrNotFound.
func (s pools) ChangePool(ctx context.Context, actor, name, reason string, change func(*PoolSpec) error) (pool Pool, err error) {
	err = s.withLockedPool(ctx, name, func(tx session, old *Pool) error {
		if old == nil {
			return ErrNotFound
		}
		spec := old.spec()
		if err := change(&spec); err != nil {
			return err
		}
		pool, _, err = putPool(ctx, tx, actor, name, old, spec, reason)
		return err
	})
	return pool, err
}

// DeletePool deletes a pool that has no open tasks. Its batches are kept. Errors: ErrNotFound, ErrOpenTasks.
func (s pools) DeletePool(ctx context.Context, actor, name string) error {
	return s.withLockedPool(ctx, name, func(tx session, old *Pool) error {
		if old == nil {
			return ErrNotFound
		}
		// A transaction that creates a batch locks the row of its pool. The next statement waits for such transactions. A transaction that
		// begins later finds the pool deleted.
		if _, err := tx.exec(ctx, `SELECT name FROM pools WHERE name = $1 FOR UPDATE`, name); err != nil {
			return fmt.Errorf("waiting for batches of pool %s: %w", name, err)
		}
		open, err := queryOne(ctx, tx, singleColumn[bool], `SELECT EXISTS (SELECT 1 FROM tasks WHERE pool = $1 AND state = 'pending')`, name)
		if err != nil {
			return err
		}
		if open {
			return fmt.Errorf("pool %s: %w", name, ErrOpenTasks)
		}
		if _, err := tx.exec(ctx, `UPDATE pools SET deleted_at = {now}, windows_due = NULL, version = version + 1, updated_at = {now} WHERE name = $1`, name); err != nil {
			return fmt.Errorf("deleting pool %s: %w", name, err)
		}
		return tx.recordEvent(ctx, Event{Kind: "pool.deleted", Actor: actor, Pool: name})
	})
}

// withLockedPool locks a pool exclusively and runs change with the pool, or with nil if the pool does not exist. Claims take the same lock
// in shared mode. So a claim either commits before change runs, or counts its slots against the new capacity.
func (s pools) withLockedPool(ctx context.Context, name string, change func(tx session, old *Pool) error) error {
	err := s.write(ctx, func(tx session) error {
		if err := tx.lockNameExclusively(ctx, name); err != nil {
			return err
		}
		old, err := tx.poolByName(ctx, name)
		if errors.Is(err, ErrNotFound) {
			return change(tx, nil)
		}
		if err != nil {
			return err
		}
		return change(tx, &old)
	})
	if errors.Is(err, errDryRun) {
		return nil
	}
	return err
}

// lockNameExclusively takes the exclusive lock of a pool, or of another name, until the end of the transaction. The caller must hold no row
// locks. All code locks in this order: the lock of the pool, then the rows of pool, batches, tasks, grants. No pool has a name that begins with
// callerPrefix: such names are for the locks of callers' leases.
func (s session) lockNameExclusively(ctx context.Context, name string) error {
	if s.lockExclusive == "" {
		return nil
	}
	if _, err := s.exec(ctx, s.lockExclusive, name); err != nil {
		return fmt.Errorf("locking pool %s: %w", name, err)
	}
	return nil
}

func (p Pool) spec() PoolSpec {
	return PoolSpec{
		Capacity: p.Capacity, Lease: p.Lease, Paused: p.Paused, Windows: p.Windows, Limits: p.Limits, Callers: p.Callers, Longest: p.Longest, Sleep: p.Sleep,
	}
}

// equals reports whether p and other have the same settings, without DryRun.
func (p PoolSpec) equals(other PoolSpec) bool {
	return describeChanges(p.auditSettings(), other.auditSettings()) == ""
}

// auditSettings returns the settings in the form of the audit log. The event of a new pool always shows the first three settings.
func (p PoolSpec) auditSettings() settings {
	return settings{
		"capacity", strconv.Itoa(p.Capacity), "lease", p.Lease.String(), "paused", strconv.FormatBool(p.Paused), "windows", fmt.Sprint(p.Windows),
		"limits", policiesAuditText(p.Limits), "callers", callerBoundText(p.Callers), "longest_lease", p.Longest.String(), "longest_sleep", p.Sleep.String(),
	}
}

func callerBoundText(bound *int) string {
	if bound == nil {
		return "none"
	}
	return strconv.Itoa(*bound)
}

// pauseInfo says who paused a pool, when and why. It is empty if the pool is not paused.
type pauseInfo struct {
	by, note  string
	at        *time.Time
	beginsNow bool // whether the pause begins with this change
}

// pauseInfoAfterChange returns the pauseInfo after actor has changed the pool from old to p for reason. old is nil for a new pool. If the pool
// was paused before, its pauseInfo stays.
func (p PoolSpec) pauseInfoAfterChange(old *Pool, actor, reason string) pauseInfo {
	switch {
	case !p.Paused:
		return pauseInfo{}
	case old != nil && old.Paused:
		return pauseInfo{by: old.PausedBy, at: old.PausedAt, note: old.PauseReason}
	}
	return pauseInfo{by: actor, note: reason, beginsNow: true}
}

// changeAuditText returns the detail of the event: the changes from old to p, and the reason. If old is nil, the pool is new, and the detail
// has the first three settings and the settings that are not the default.
func (p PoolSpec) changeAuditText(old *Pool, reason string) string {
	if old != nil {
		return appendReason(describeChanges(old.spec().auditSettings(), p.auditSettings()), reason)
	}
	byDefault, now := PoolSpec{Longest: DefaultLongestLease, Sleep: DefaultLongestSleep}.auditSettings(), p.auditSettings()
	var parts []string
	for i := 1; i < len(now); i += 2 {
		if i < 6 || now[i] != byDefault[i] {
			parts = append(parts, now[i-1]+"="+now[i])
		}
	}
	return appendReason(strings.Join(parts, " "), reason)
}

// appendReason returns the detail of an event with reason added. If reason is empty, it returns detail.
func appendReason(detail, reason string) string {
	if reason == "" {
		return detail
	}
	return detail + " because: " + reason
}

// putPool stores spec as the settings of the pool with this name, and records the event with the reason. old is the present pool, or nil if the
// pool is new.
func putPool(ctx context.Context, tx session, actor, name string, old *Pool, spec PoolSpec, reason string) (pool Pool, created bool, err error) {
	spec.Longest, spec.Sleep = cmp.Or(spec.Longest, DefaultLongestLease), cmp.Or(spec.Sleep, DefaultLongestSleep)
	if old != nil && spec.equals(old.spec()) {
		return *old, false, nil
	}
	o, err := tx.computeOpening(ctx, spec.Windows)
	if err != nil {
		return Pool{}, false, err
	}
	held := spec.pauseInfoAfterChange(old, actor, reason)
	// If a deleted pool is created again, it keeps its version and its stands_until (the time before which it grants nothing).
	if _, err := tx.exec(ctx, `
		INSERT INTO pools (name, capacity, lease_ms, paused, windows, opens_at, closes_at, windows_due, version, created_at, updated_at,
			paused_by, paused_at, pause_reason, limits, callers, longest_ms, sleep_ms, stands_until)
		VALUES ($1, $2, $3, $4, $5::json, {epoch} + $6 * {ms}, {epoch} + $7 * {ms}, {epoch} + $8 * {ms}, 1, {now}, {now},
			$9, CASE WHEN $10 THEN {now} ELSE {epoch} + $11 * {ms} END, $12, $13::json, $14, $15, $16, (SELECT max(r.until) FROM restores r))
		ON CONFLICT (name) DO UPDATE SET capacity = excluded.capacity, lease_ms = excluded.lease_ms, paused = excluded.paused,
			windows = excluded.windows, opens_at = excluded.opens_at, closes_at = excluded.closes_at, windows_due = excluded.windows_due,
			created_at = CASE WHEN pools.deleted_at IS NULL THEN pools.created_at ELSE excluded.created_at END, deleted_at = NULL,
			version = pools.version + 1, updated_at = excluded.updated_at,
			paused_by = excluded.paused_by, paused_at = excluded.paused_at, pause_reason = excluded.pause_reason,
			limits = excluded.limits, callers = excluded.callers, longest_ms = excluded.longest_ms, sleep_ms = excluded.sleep_ms`,
		name, spec.Capacity, spec.Lease.Milliseconds(), spec.Paused, o.windows, o.from, o.until, o.refreshDue,
		held.by, held.beginsNow, millisOrNull(held.at), held.note, jsonTextOrNull(spec.Limits), spec.Callers, spec.Longest.Milliseconds(),
		spec.Sleep.Milliseconds()); err != nil {
		return Pool{}, false, fmt.Errorf("writing pool %s: %w", name, err)
	}
	tx.pendingNews.addPool(name)
	kind := "pool.changed"
	if old == nil {
		kind = "pool.created"
	}
	if err := tx.recordEvent(ctx, Event{Kind: kind, Actor: actor, Pool: name, Detail: spec.changeAuditText(old, reason)}); err != nil {
		return Pool{}, false, err
	}
	pool, err = tx.poolByName(ctx, name)
	if err == nil && spec.DryRun {
		err = errDryRun // rolls the transaction back
	}
	return pool, old == nil, err
}
