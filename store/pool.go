package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Pool is a set of Capacity numbered places (slots 0..Capacity-1).
type Pool struct {
	Name      string
	Capacity  int           // 0..10000; 0 grants nothing
	Lease     time.Duration // 1 s..24 h, unless the batch says otherwise
	Paused    bool          // true: nothing new is granted
	Version   int64         // increases with every change
	CreatedAt time.Time
	UpdatedAt time.Time
}

// PoolSpec is what an operator decides about a pool.
type PoolSpec struct {
	Capacity int           // 0..10000
	Lease    time.Duration // more than 0
	Paused   bool
}

const poolColumns = `name, capacity, lease_ms, paused, version, created_at, updated_at`

func poolDest(p *Pool) []any {
	return []any{&p.Name, &p.Capacity, millis{&p.Lease}, &p.Paused, &p.Version, instant{&p.CreatedAt}, instant{&p.UpdatedAt}}
}

// Pool returns one pool; ErrNotFound.
func (s *Store) Pool(ctx context.Context, name string) (Pool, error) {
	return one(ctx, s.read(), poolDest, `SELECT `+poolColumns+` FROM pools WHERE name = $1`, name)
}

// Pools returns up to limit pools by name, those after the one named.
func (s *Store) Pools(ctx context.Context, after string, limit int) ([]Pool, error) {
	return collect(ctx, s.read(), poolDest,
		`SELECT `+poolColumns+` FROM pools WHERE name > $1 ORDER BY name LIMIT $2`, after, limit)
}

// PutPool creates the pool or changes it. Without a change nothing is written
// and the version stays.
//
// It holds the pool's lock alone, and claims hold it shared: a claim counts
// places either against the old capacity and commits before, or against the
// new one.
func (s *Store) PutPool(ctx context.Context, actor, name string, spec PoolSpec) (p Pool, created bool, err error) {
	err = s.write(ctx, func(tx session) error {
		if s.lockAlone != "" {
			if _, err := tx.exec(ctx, s.lockAlone, name); err != nil {
				return fmt.Errorf("locking pool %s: %w", name, err)
			}
		}
		p, created, err = putPool(ctx, tx, actor, name, spec)
		return err
	})
	if err != nil {
		return Pool{}, false, err
	}
	return p, created, nil
}

func putPool(ctx context.Context, tx session, actor, name string, spec PoolSpec) (p Pool, created bool, err error) {
	const byName = `SELECT ` + poolColumns + ` FROM pools WHERE name = $1`
	old, err := one(ctx, tx, poolDest, byName, name)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return Pool{}, false, err
	}
	created = err != nil
	if !created && spec == (PoolSpec{old.Capacity, old.Lease, old.Paused}) {
		return old, false, nil
	}
	if _, err := tx.exec(ctx, `
		INSERT INTO pools (name, capacity, lease_ms, paused, version, created_at, updated_at)
		VALUES ($1, $2, $3, $4, 1, {now}, {now})
		ON CONFLICT (name) DO UPDATE SET capacity = excluded.capacity, lease_ms = excluded.lease_ms,
			paused = excluded.paused, version = pools.version + 1, updated_at = excluded.updated_at`,
		name, spec.Capacity, spec.Lease.Milliseconds(), spec.Paused); err != nil {
		return Pool{}, false, fmt.Errorf("writing pool %s: %w", name, err)
	}
	kind := "pool.changed"
	if created {
		kind = "pool.created"
	}
	detail := fmt.Sprintf("capacity=%d lease=%s paused=%t", spec.Capacity, spec.Lease, spec.Paused)
	if err := tx.record(ctx, Event{Kind: kind, Actor: actor, Pool: name, Detail: detail}); err != nil {
		return Pool{}, false, err
	}
	p, err = one(ctx, tx, poolDest, byName, name)
	return p, created, err
}

// PoolStat is a reading of one pool for metrics.
type PoolStat struct {
	Pool          string
	Capacity      int
	Held          int64 // grants in force, or lapsed and not yet reaped
	Tasks         map[TaskState]int64
	OldestPending time.Duration // age of the oldest task that waits; 0 = none
}

// PoolStats reads all pools. It is exact, and costs one pass over an index of
// all tasks: for a scrape, not for a request.
func (s *Store) PoolStats(ctx context.Context) ([]PoolStat, error) {
	type reading struct {
		PoolStat
		state    TaskState
		n        int64
		now      time.Time
		pendedAt *time.Time
	}
	rows, err := collect(ctx, s.read(), func(r *reading) []any {
		return []any{&r.Pool, &r.Capacity, &r.Held, opt(&r.state), opt(&r.n), instant{&r.now}, maybe{&r.pendedAt}}
	}, `
		WITH counts AS (SELECT pool, state, count(*) AS n FROM tasks GROUP BY pool, state)
		SELECT p.name, p.capacity, (SELECT count(*) FROM grants g WHERE g.pool = p.name), c.state, c.n, {now}, (
			SELECT b.created_at FROM tasks t JOIN batches b ON b.id = t.batch
			WHERE t.pool = p.name AND t.state = 'pending' AND NOT EXISTS (SELECT 1 FROM grants g WHERE g.task = t.id)
			ORDER BY t.id LIMIT 1)
		FROM pools p LEFT JOIN counts c ON c.pool = p.name
		ORDER BY p.name, c.state`)
	if err != nil {
		return nil, err
	}
	var stats []PoolStat
	for _, r := range rows {
		if len(stats) == 0 || stats[len(stats)-1].Pool != r.Pool {
			r.Tasks = map[TaskState]int64{}
			if r.pendedAt != nil {
				r.OldestPending = max(0, r.now.Sub(*r.pendedAt))
			}
			stats = append(stats, r.PoolStat)
		}
		stat := &stats[len(stats)-1]
		if r.n > 0 {
			stat.Tasks[r.state] = r.n
		}
	}
	for i := range stats {
		splitDispatched(stats[i].Tasks, stats[i].Held)
	}
	return stats, nil
}

// splitDispatched takes the tasks that have a grant out of the pending ones.
func splitDispatched(counts map[TaskState]int64, dispatched int64) {
	if dispatched == 0 {
		return
	}
	counts[Dispatched] = dispatched
	if counts[Pending] -= dispatched; counts[Pending] == 0 {
		delete(counts, Pending)
	}
}
