package store

import (
	"context"
	"fmt"
)

// PoolsWithWork returns those of these pools in which something waits and could
// be granted, with or without a free slot; none as long as no device can be told of anything.
// A task that runs counts as waiting: whether more does, a search finds out.
func (s pools) PoolsWithWork(ctx context.Context, pools []string) ([]string, error) {
	found, err := collect(ctx, s.read(), only[string], poolsWithWork(), names(pools))
	if err != nil {
		return nil, fmt.Errorf("looking for pools with work: %w", err)
	}
	return found, nil
}

// poolsWithWork asks each pool for one task. (Instead of what EXISTS asks Postgres may read the
// tasks of all pools for each of them.)
func poolsWithWork() string {
	return `
	SELECT p.name FROM {names} JOIN pools p ON p.name = names.name
	WHERE p.deleted_at IS NULL AND p.paused IS FALSE AND p.capacity > 0 AND ` + granting + `
		AND EXISTS (SELECT 1 FROM devices d WHERE d.reach <> 0)
		AND (SELECT t.id FROM tasks t WHERE t.pool = p.name AND t.state = 'pending' LIMIT 1) IS NOT NULL
	ORDER BY names.n`
}

// PoolsWithUrgent returns those of these pools in which something waits of an urgent batch
// whose tasks may start now.
func (s pools) PoolsWithUrgent(ctx context.Context, pools []string) ([]string, error) {
	found, err := collect(ctx, s.read(), only[string], poolsWithUrgent(), names(pools))
	if err != nil {
		return nil, fmt.Errorf("looking for pools with urgent work: %w", err)
	}
	return found, nil
}

func poolsWithUrgent() string {
	return `
	SELECT p.name FROM {names} JOIN pools p ON p.name = names.name
	WHERE (SELECT b.id FROM batches b WHERE b.pool = p.name AND ` + openUrgent("p.name") + ` AND ` + startable() + ` ORDER BY b.pool, b.id LIMIT 1) IS NOT NULL
	ORDER BY names.n`
}
