package store

import (
	"context"
	"fmt"
)

// PoolsWithWork returns each of the pools that has pending tasks and may grant, with or without a free slot. If no device can be notified,
// it returns none. A running task counts as pending here; a later search finds out whether more tasks wait.
func (s pools) PoolsWithWork(ctx context.Context, pools []string) ([]string, error) {
	found, err := collect(ctx, s.read(), only[string], poolsWithWork(), names(pools))
	if err != nil {
		return nil, fmt.Errorf("looking for pools with work: %w", err)
	}
	return found, nil
}

// poolsWithWork reads one task per pool. It does not use EXISTS, because Postgres may answer that by reading the tasks of all pools for
// each pool.
func poolsWithWork() string {
	return `
	SELECT p.name FROM {names} JOIN pools p ON p.name = names.name
	WHERE p.deleted_at IS NULL AND p.paused IS FALSE AND p.capacity > 0 AND ` + granting + `
		AND EXISTS (SELECT 1 FROM devices d WHERE d.reach <> 0)
		AND (SELECT t.id FROM tasks t WHERE t.pool = p.name AND t.state = 'pending' LIMIT 1) IS NOT NULL
	ORDER BY names.n`
}

// PoolsWithUrgent returns each of the pools that has a waiting task in an urgent batch whose tasks may start now.
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
