package store

import (
	"context"
	"fmt"
)

// Occupancy is who holds what in one pool.
type Occupancy struct {
	Pool    Pool
	Grants  []Grant // by slot; those lapsed and not yet reaped included
	Waiting int     // devices that could start now and hold no slot, counted up to a bound
}

// Occupancy reads a pool, its grants and how many devices wait, up to
// waitingMax: one statement, thus one moment; ErrNotFound.
func (s *Store) Occupancy(ctx context.Context, pool string, waitingMax int) (Occupancy, error) {
	type reading struct {
		Occupancy
		grant Grant
	}
	rows, err := collect(ctx, s.read(), func(r *reading) []any {
		return append(append(poolDest(&r.Pool), &r.Waiting), grantDest(&r.grant)...)
	}, `
		WITH wanted AS (SELECT `+poolColumns+`, (`+waitingCount("$1", "$2", "")+`) AS waiting FROM pools WHERE name = $1 AND deleted_at IS NULL)
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

// WaitingByPool counts as Waiting does, up to most in each pool. Pools in which
// nobody waits are left out.
func (s *Store) WaitingByPool(ctx context.Context, most int) (map[string]int, error) {
	type reading struct {
		pool    string
		waiting int
	}
	rows, err := collect(ctx, s.read(), func(r *reading) []any { return []any{&r.pool, &r.waiting} }, `
		SELECT open.name, (`+waitingCount("open.name", "$1", "")+`) FROM pools open
		WHERE open.deleted_at IS NULL AND EXISTS (SELECT 1 FROM tasks t WHERE t.pool = open.name AND t.state = 'pending')`, most)
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
