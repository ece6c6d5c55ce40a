package store

import "context"

// PoolsWithWork returns each of the given pools that has pending tasks and may grant, with or without a free slot. A running task counts as
// pending here; a later search finds out whether other tasks wait. If no device can be notified, PoolsWithWork returns no pools.
func (s pools) PoolsWithWork(ctx context.Context, pools []string) (_ []string, err error) {
	defer describe(&err, "finding pools with work")
	return collect(ctx, s.readSession(), singleColumn[string], poolsWithWorkSQL(), namesInput(pools))
}

// poolsWithWorkSQL returns the statement of PoolsWithWork. It reads one task per pool. It uses no EXISTS, because Postgres may evaluate
// an EXISTS by reading the tasks of all pools once for each pool.
func poolsWithWorkSQL() string {
	return `
	SELECT p.name FROM {names} JOIN pools p ON p.name = names.name
	WHERE p.deleted_at IS NULL AND p.paused IS FALSE AND p.capacity > 0 AND ` + poolMayGrantSQL + `
		AND EXISTS (SELECT 1 FROM devices d WHERE d.reach <> 0)
		AND (SELECT t.id FROM tasks t WHERE t.pool = p.name AND t.state = 'pending' LIMIT 1) IS NOT NULL
	ORDER BY names.n`
}

// PoolsWithUrgent returns each of the given pools that has an urgent batch with a waiting task, if tasks of this batch may start now.
func (s pools) PoolsWithUrgent(ctx context.Context, pools []string) (_ []string, err error) {
	defer describe(&err, "finding pools with urgent work")
	return collect(ctx, s.readSession(), singleColumn[string], poolsWithUrgentSQL(), namesInput(pools))
}

// poolsWithUrgentSQL returns the statement of PoolsWithUrgent.
func poolsWithUrgentSQL() string {
	return `
	SELECT p.name FROM {names} JOIN pools p ON p.name = names.name
	WHERE (SELECT b.id FROM batches b WHERE b.pool = p.name AND ` + isOpenUrgentSQL("p.name") + ` AND ` + isStartableSQL() + ` ORDER BY b.pool, b.id LIMIT 1) IS NOT NULL
	ORDER BY names.n`
}
