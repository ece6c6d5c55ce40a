package store

import (
	"cmp"
	"context"
	"fmt"
	"math"
)

// OpenBatch is a batch with waiting tasks.
type OpenBatch struct {
	ID       int64
	MayStart bool // whether the tasks of the batch may start now
}

// OpenBatches returns at most limit batches of the pool with waiting tasks and an id > afterID, lowest id first. Its cost depends on the
// number of these batches and of the grants of the pool, not on the number of tasks.
func (s batches) OpenBatches(ctx context.Context, pool string, afterID int64, limit int) (_ []OpenBatch, err error) {
	defer wrapError(&err, "finding batches of pool %s", pool)
	return collect(ctx, s.readSession(), func(b *OpenBatch) []any { return []any{&b.ID, &b.MayStart} }, openBatchesSQL(), pool, afterID, limit)
}

// openBatchesSQL returns the statement of OpenBatches, which jumps from batch to batch in the index of waiting tasks.
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
	defer wrapError(&err, "finding urgent batches of pool %s", pool)
	return collect(ctx, s.readSession(), func(b *OpenBatch) []any { return []any{&b.ID, &b.MayStart} }, urgentBatchesSQL(), pool, limit)
}

func urgentBatchesSQL() string {
	return `
	SELECT b.id, CASE WHEN ` + isStartableSQL() + ` THEN TRUE ELSE FALSE END
	FROM (SELECT * FROM batches b WHERE b.pool = $1 AND ` + isOpenUrgentSQL("$1") + ` ORDER BY b.id DESC LIMIT $2) AS b CROSS JOIN (SELECT * FROM pools WHERE name = $1) AS p
	ORDER BY b.id DESC`
}

// isOpenUrgentSQL returns the condition that batch b is urgent and has waiting tasks in the pool poolExpr (SQL). The bound on b.id skips the
// batches that are older than the oldest batch with waiting tasks.
func isOpenUrgentSQL(poolExpr string) string {
	return `b.lane = 'urgent'
		AND b.id >= ` + nextWaitingBatchSQL(poolExpr, ">", "0") + ` AND ` + nextWaitingBatchSQL("b.pool", "=", "b.id") + ` IS NOT NULL`
}

// NamedSearchLimit is the number of batches that one call of BatchesNamed searches.
const NamedSearchLimit = searchLimit

// BatchesNamed returns at most limit batches that match filter and whose names contain namePart in any case, newest first, with their
// counts. If beforeID is not 0, it searches batches with id < beforeID. One call searches at most NamedSearchLimit batches.
func (s batches) BatchesNamed(ctx context.Context, namePart string, filter BatchFilter, beforeID int64, limit int) ([]Batch, SearchBound, error) {
	beforeID = cmp.Or(beforeID, math.MaxInt64)
	bound, err := s.searchBound(ctx, &query{args: []any{beforeID, searchLimit}}, `SELECT id FROM batches WHERE id < $1 ORDER BY id DESC LIMIT $2`, "DESC")
	if err != nil {
		return nil, SearchBound{}, fmt.Errorf("finding batches: %w", err)
	}
	list, err := collect(ctx, s.customPlanSession(), batchAndPoolScanDest, batchesNamedSQL(), beforeID, searchLimit, likePattern(namePart), clampLimit(limit), string(filter.Lane))
	if err != nil {
		return nil, SearchBound{}, fmt.Errorf("finding batches: %w", err)
	}
	return list, bound, s.fillCounts(ctx, list)
}

func batchesNamedSQL() string {
	return `
		SELECT ` + batchAndPoolColumns + ` FROM (
			SELECT id FROM (SELECT id, name, lane FROM batches WHERE id < $1 ORDER BY id DESC LIMIT ` + hideValueFromPlannerSQL("$2", "integer") + `) AS looked
			WHERE ` + likeSQL("name", "$3") + ` AND ($5 = '' OR lane = $5) ORDER BY id DESC LIMIT $4) AS found
		JOIN batches b ON b.id = found.id JOIN pools p ON p.name = b.pool ORDER BY b.id DESC`
}
