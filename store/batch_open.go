package store

import (
	"context"
	"fmt"
)

// OpenBatch is a batch with waiting tasks.
type OpenBatch struct {
	ID      int64
	Running bool // whether its tasks may start now
}

// OpenBatches returns at most limit batches of the pool that have waiting tasks and an id > after, by id. Its cost depends on the number of
// returned batches and on the number of grants in the pool, not on the number of tasks.
func (s batches) OpenBatches(ctx context.Context, pool string, after int64, limit int) ([]OpenBatch, error) {
	found, err := collect(ctx, s.read(), func(b *OpenBatch) []any { return []any{&b.ID, &b.Running} }, openBatches(), pool, after, limit)
	if err != nil {
		return nil, fmt.Errorf("looking for batches of pool %s: %w", pool, err)
	}
	return found, nil
}

// openBatches steps from batch to batch in the index of waiting tasks, and looks up each batch by its id.
func openBatches() string {
	return `
	WITH RECURSIVE open(n, batch) AS (
		SELECT 1, ` + nextWaiting("$1", ">", "$2") + `
		UNION ALL
		SELECT n + 1, ` + nextWaiting("$1", ">", "open.batch") + ` FROM open WHERE open.batch IS NOT NULL AND n < $3
	)
	SELECT b.id, CASE WHEN ` + startable() + ` THEN TRUE ELSE FALSE END
	FROM open AS t {batch of t} CROSS JOIN (SELECT * FROM pools WHERE name = $1) AS p
	ORDER BY b.id`
}

// UrgentBatches returns at most limit urgent batches of a pool that have waiting tasks, newest first.
func (s batches) UrgentBatches(ctx context.Context, pool string, limit int) ([]OpenBatch, error) {
	found, err := collect(ctx, s.read(), func(b *OpenBatch) []any { return []any{&b.ID, &b.Running} }, urgentBatches(), pool, limit)
	if err != nil {
		return nil, fmt.Errorf("looking for urgent batches of pool %s: %w", pool, err)
	}
	return found, nil
}

func urgentBatches() string {
	return `
	SELECT b.id, CASE WHEN ` + startable() + ` THEN TRUE ELSE FALSE END
	FROM (SELECT * FROM batches b WHERE b.pool = $1 AND ` + openUrgent("$1") + ` ORDER BY b.id DESC LIMIT $2) AS b CROSS JOIN (SELECT * FROM pools WHERE name = $1) AS p
	ORDER BY b.id DESC`
}

// openUrgent is the condition that batch b is urgent and has waiting tasks. It skips all batches that are older than the oldest batch of
// the pool with waiting tasks.
func openUrgent(pool string) string {
	return `b.lane = 'urgent'
		AND b.id >= ` + nextWaiting(pool, ">", "0") + ` AND ` + nextWaiting("b.pool", "=", "b.id") + ` IS NOT NULL`
}
