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
	Waiting int        // devices that could start now and hold no slot, counted up to a bound
}

// Occupancy reads a pool, its grants and how many devices wait, up to
// waitingMax: one statement, thus one moment; ErrNotFound.
func (s *Store) Occupancy(ctx context.Context, pool string, waitingMax int) (Occupancy, error) {
	type reading struct {
		Occupancy
		grant Grant
	}
	rows, err := collect(ctx, s.read(), func(r *reading) []any {
		return append(append(poolDest(&r.Pool), &r.Waiting, maybe{&r.Oldest}), grantDest(&r.grant)...)
	}, `
		WITH wanted AS (SELECT `+poolColumns+`, (`+waitingCount("$1", "$2", "")+`) AS waiting, (`+oldestPending("$1")+`) AS oldest FROM pools WHERE name = $1 AND deleted_at IS NULL)
		SELECT w.*, `+grantColumns+` FROM wanted w
			LEFT JOIN grants g ON g.pool = w.name LEFT JOIN tasks t ON t.id = g.task LEFT JOIN batches b ON b.id = g.batch
		ORDER BY g.slot`, pool, waitingMax)
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
// hold none, up to most.
func (s *Store) Waiting(ctx context.Context, pool string, most int) (int, error) {
	return one(ctx, s.read(), only[int], waitingCount("$1", "$2", ""), pool, most)
}

// WaitingByPool counts as Waiting does, among up to so many tasks of each pool.
// Pools in which nobody waits are left out. Each condition is a look-up by a
// key: joined, the batches of all pools would be read for each pool.
func (s *Store) WaitingByPool(ctx context.Context, tasks int) (map[string]int, error) {
	type reading struct {
		pool    string
		waiting int
	}
	rows, err := collect(ctx, s.read(), func(r *reading) []any { return []any{&r.pool, &r.waiting} }, `
		SELECT p.name, (
			SELECT count(DISTINCT found.device) FROM (
				SELECT t.device FROM tasks t
				WHERE t.pool = p.name AND t.state = 'pending' AND (t.retry_at IS NULL OR t.retry_at <= {now})
					AND (SELECT g.task FROM grants g WHERE g.device = t.device) IS NULL
					AND (SELECT CASE WHEN `+startable()+` THEN TRUE ELSE FALSE END FROM batches b WHERE b.id = t.batch)
					AND (SELECT d.blocked FROM devices d WHERE d.id = t.device) IS NOT TRUE
				LIMIT $1) AS found)
		FROM pools p
		WHERE p.deleted_at IS NULL AND p.paused IS FALSE AND EXISTS (SELECT 1 FROM tasks t WHERE t.pool = p.name AND t.state = 'pending')`, tasks)
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

// waitingCount counts the devices of the pool that could be granted a task now
// and hold none, up to most. All three are SQL; also is one more condition.
func waitingCount(pool, most, also string) string {
	return `
	SELECT count(*) FROM (
		SELECT DISTINCT t.device
		FROM tasks t JOIN batches b ON b.id = t.batch JOIN pools p ON p.name = t.pool LEFT JOIN devices d ON d.id = t.device
		WHERE t.pool = ` + pool + ` AND t.state = 'pending' AND ` + eligible() + also + `
			AND NOT EXISTS (SELECT 1 FROM grants g WHERE g.device = t.device)
		LIMIT ` + most + `) AS waiting`
}
