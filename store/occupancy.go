package store

import (
	"context"
	"fmt"
	"time"
)

// Occupancy is who holds what in one pool.
type Occupancy struct {
	Pool    Pool
	Grants  []Grant    // by slot; those lapsed and not yet reaped included
	Oldest  *time.Time // when the batch of its oldest pending task was created; nil: none is pending
	Waiting int        // devices that could start now and hold no slot, counted among a number of tasks
}

// Occupancy reads a pool, its grants and how many devices wait, among so many
// tasks: one statement, thus one moment; ErrNotFound.
func (s *Store) Occupancy(ctx context.Context, pool string, tasks int) (Occupancy, error) {
	type reading struct {
		Occupancy
		grant Grant
	}
	rows, err := collect(ctx, s.read(), func(r *reading) []any {
		return append(append(poolDest(&r.Pool), &r.Waiting, maybe{&r.Oldest}), grantDest(&r.grant)...)
	}, `
		WITH wanted AS (SELECT `+poolColumns+`, (`+waitingCount("$1", "$2")+`) AS waiting, (`+oldestPending("$1")+`) AS oldest FROM pools WHERE name = $1 AND deleted_at IS NULL)
		SELECT w.*, `+grantColumns+` FROM wanted w
			LEFT JOIN grants g ON g.pool = w.name LEFT JOIN tasks t ON t.id = g.task LEFT JOIN batches b ON b.id = g.batch
		ORDER BY g.slot`, pool, tasks)
	if err != nil {
		return Occupancy{}, err
	}
	if len(rows) == 0 {
		return Occupancy{}, ErrNotFound
	}
	o := rows[0].Occupancy
	for _, r := range rows {
		if r.grant.Task != 0 {
			o.Grants = append(o.Grants, r.grant)
		}
	}
	return o, nil
}

// Waiting counts the devices that could be granted a task of the pool now and
// hold none, among so many tasks that could start.
func (s *Store) Waiting(ctx context.Context, pool string, tasks int) (int, error) {
	return one(ctx, s.read(), only[int], waitingCount("$1", "$2"), pool, tasks)
}

// WaitingByPool counts as Waiting does, in all pools. Pools in which nobody
// waits are left out.
func (s *Store) WaitingByPool(ctx context.Context, tasks int) (map[string]int, error) {
	type reading struct {
		pool    string
		waiting int
	}
	rows, err := collect(ctx, s.read(), func(r *reading) []any { return []any{&r.pool, &r.waiting} }, `
		SELECT o.name, (`+waitingCount("o.name", "$1")+`) FROM pools o
		WHERE o.deleted_at IS NULL AND o.paused IS FALSE AND EXISTS (SELECT 1 FROM tasks t WHERE t.pool = o.name AND t.state = 'pending')`, tasks)
	if err != nil {
		return nil, fmt.Errorf("counting who waits: %w", err)
	}
	waiting := make(map[string]int, len(rows))
	for _, r := range rows {
		if r.waiting > 0 {
			waiting[r.pool] = r.waiting
		}
	}
	return waiting, nil
}

// waitingCount counts the devices of a pool that could be granted a task now
// and hold none, among so many tasks that could start. Both arguments are SQL.
// The limit stands below what is counted, and what is looked up a device at a
// time above it: so the work is bounded, and its plan does not depend on how
// many devices are blocked.
func waitingCount(pool, tasks string) string {
	return `
	SELECT count(DISTINCT found.device) FROM (
		SELECT t.device FROM tasks t
		WHERE t.pool = ` + pool + ` AND t.state = 'pending' AND (t.retry_at IS NULL OR t.retry_at <= {now})
			AND t.batch IN (SELECT b.id FROM batches b JOIN pools p ON p.name = b.pool WHERE b.pool = ` + pool + ` AND ` + startable() + `)
			AND NOT EXISTS (SELECT 1 FROM grants g WHERE g.device = t.device)
		LIMIT ` + tasks + `) AS found
	WHERE (SELECT d.id FROM devices d WHERE d.id = found.device AND d.blocked) IS NULL`
}
