package store

import "context"

// OpenBatch is a batch with waiting tasks.
type OpenBatch struct {
	ID       int64
	MayStart bool // whether its tasks may start now
}

// OpenBatches returns at most limit batches of the pool that have waiting tasks and an id > afterID, in ascending order of ids. Its cost
// depends on the number of returned batches and on the number of grants in the pool, not on the number of tasks.
func (s batches) OpenBatches(ctx context.Context, pool string, afterID int64, limit int) (_ []OpenBatch, err error) {
	defer describe(&err, "finding batches of pool %s", pool)
	return collect(ctx, s.readSession(), func(b *OpenBatch) []any { return []any{&b.ID, &b.MayStart} }, openBatchesSQL(), pool, afterID, limit)
}

// openBatchesSQL returns the statement of OpenBatches. Its cost does not depend on the number of tasks: it jumps from batch to batch in
// the index of waiting tasks, and looks up each batch by its id.
func openBatchesSQL() string {
	return `
	WITH RECURSIVE open(n, batch) AS (
		SELECT 1, ` + nextWaitingBatchSQL("$1", ">", "$2") + `
		UNION ALL
		SELECT n + 1, ` + nextWaitingBatchSQL("$1", ">", "open.batch") + ` FROM open WHERE open.batch IS NOT NULL AND n < $3
	)
	SELECT b.id, CASE WHEN ` + isStartableSQL() + ` THEN TRUE ELSE FALSE END
	FROM open AS t {batch of t} CROSS JOIN (SELECT * FROM pools WHERE name = $1) AS p
	ORDER BY b.id`
}

// UrgentBatches returns at most limit urgent batches of a pool that have waiting tasks, newest first.
func (s batches) UrgentBatches(ctx context.Context, pool string, limit int) (_ []OpenBatch, err error) {
	defer describe(&err, "finding urgent batches of pool %s", pool)
	return collect(ctx, s.readSession(), func(b *OpenBatch) []any { return []any{&b.ID, &b.MayStart} }, urgentBatchesSQL(), pool, limit)
}

// urgentBatchesSQL returns the statement of UrgentBatches.
func urgentBatchesSQL() string {
	return `
	SELECT b.id, CASE WHEN ` + isStartableSQL() + ` THEN TRUE ELSE FALSE END
	FROM (SELECT * FROM batches b WHERE b.pool = $1 AND ` + isOpenUrgentSQL("$1") + ` ORDER BY b.id DESC LIMIT $2) AS b CROSS JOIN (SELECT * FROM pools WHERE name = $1) AS p
	ORDER BY b.id DESC`
}

// isOpenUrgentSQL returns the SQL condition that batch b is urgent and has waiting tasks. poolExpr is an SQL expression for the pool. The
// condition on b.id lets the database skip the batches that are older than the oldest batch of the pool with waiting tasks.
func isOpenUrgentSQL(poolExpr string) string {
	return `b.lane = 'urgent'
		AND b.id >= ` + nextWaitingBatchSQL(poolExpr, ">", "0") + ` AND ` + nextWaitingBatchSQL("b.pool", "=", "b.id") + ` IS NOT NULL`
}
