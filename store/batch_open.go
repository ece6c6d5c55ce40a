package store

import (
	"context"
	"fmt"
)

// OpenBatch is a batch of which something waits.
type OpenBatch struct {
	ID      int64
	Running bool // its tasks may start now
}

// OpenBatches returns up to limit batches of the pool of which something waits,
// by id, those after the one given. Its cost depends on how many it returns and on
// what runs in the pool, not on their tasks.
func (s batches) OpenBatches(ctx context.Context, pool string, after int64, limit int) ([]OpenBatch, error) {
	found, err := collect(ctx, s.read(), func(b *OpenBatch) []any { return []any{&b.ID, &b.Running} }, openBatches(), pool, after, limit)
	if err != nil {
		return nil, fmt.Errorf("looking for batches of pool %s: %w", pool, err)
	}
	return found, nil
}

// openBatches leaps from batch to batch in the index of waiting tasks, and looks each up by itself.
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

// UrgentBatches are the newest urgent batches of a pool of which something waits, limit at most.
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

// openUrgent is true of the urgent batches b of a pool of which something waits. It looks at
// none that is older than the oldest of which something does.
func openUrgent(pool string) string {
	return `b.lane = 'urgent'
		AND b.id >= ` + nextWaiting(pool, ">", "0") + ` AND ` + nextWaiting("b.pool", "=", "b.id") + ` IS NOT NULL`
}
