package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Abort is the rule that pauses a batch if too many of its tasks fail.
type Abort struct {
	Failure float64 // share of failed and timed-out tasks among the tasks that succeeded, failed or timed out; above 0, at most 1
	Min     int64   // number of tasks that must have succeeded, failed or timed out before the rule applies, at least 1
}

// ranToEndSQL is the SQL condition that a task was started and has ended: its state is succeeded, failed or timed out.
const ranToEndSQL = `state IN ('succeeded', 'failed', 'timed_out')`

// batchCountsSQL selects the number n of ended tasks by batch and state: the stored counts and the deltas that Fold has not yet added.
const batchCountsSQL = `SELECT batch, state, n FROM batch_counts UNION ALL SELECT batch, state, n FROM batch_deltas`

// poolCountsSQL selects the number n of ended tasks by pool and state, from the stored counts and the deltas. The row with the state
// queuedState counts all tasks of the pool.
const poolCountsSQL = `SELECT pool, state, n FROM pool_counts WHERE pool > '' UNION ALL SELECT pool, state, n FROM batch_deltas WHERE id > 0`

// recentMillis is the period, in milliseconds, that Batch.Recent covers.
const recentMillis = 5 * 60 * 1000

// queuedState is the state of the row of pool_counts that counts all tasks of the pool, open or ended. fillCounts uses it for Batch.Total.
const queuedState = "queued"

// recentState marks the rows that fillCounts adds up in Batch.Recent. No task has this state.
const recentState = "recent"

// fillCounts fills Total, Counts and Recent of batchesToFill by one statement, so each task is counted in exactly one state. It reads no tasks.
// A batch that was deleted in the meantime gets no counts.
func (s batches) fillCounts(ctx context.Context, batchesToFill []Batch) error {
	type count struct {
		batch int64
		state TaskState
		n     int64
	}
	byID := map[int64]*Batch{}
	for i := range batchesToFill {
		batchesToFill[i].Total, batchesToFill[i].Counts = 0, map[TaskState]int64{}
		byID[batchesToFill[i].ID] = &batchesToFill[i]
	}
	const wanted = ` WHERE batch IN (SELECT id FROM {ids})`
	counts, err := collect(ctx, s.readSession(), func(c *count) []any { return []any{&c.batch, &c.state, &c.n} }, `
		SELECT batch, state, CAST(sum(n) AS bigint) FROM (
			SELECT b.id AS batch, '`+queuedState+`' AS state, b.total AS n FROM {ids} JOIN batches b ON b.id = ids.id
			UNION ALL SELECT batch, state, n FROM batch_counts`+wanted+`
			UNION ALL SELECT batch, state, n FROM batch_deltas`+wanted+`
			UNION ALL SELECT batch, 'dispatched', 1 FROM grants`+wanted+` AND pool IN (SELECT b.pool FROM {ids} JOIN batches b ON b.id = ids.id)
			UNION ALL SELECT batch, '`+recentState+`', n FROM batch_rates`+wanted+` AND at > {now} - `+fmt.Sprint(recentMillis)+` * {ms}
			UNION ALL SELECT batch, '`+recentState+`', n FROM batch_deltas`+wanted+` AND n > 0 AND `+ranToEndSQL+`) AS counts
		GROUP BY batch, state`, idsToJSONArray(slices.Collect(maps.Keys(byID))...))
	if err != nil {
		return fmt.Errorf("counting tasks: %w", err)
	}
	for _, c := range counts {
		b := byID[c.batch]
		switch {
		case c.state == queuedState:
			b.Total = c.n
		case c.state == recentState:
			b.Recent = c.n
		case c.n != 0:
			b.Counts[c.state] = c.n
		}
	}
	for _, b := range batchesToFill {
		if b.Total == 0 {
			clear(b.Counts) // the deltas of a deleted batch stay until the next fold
		}
		setPendingCount(b.Counts, b.Total)
	}
	return nil
}

// setPendingCount sets the count of Pending to totalTasks minus all other counts.
func setPendingCount(countByState map[TaskState]int64, totalTasks int64) {
	for _, n := range countByState {
		totalTasks -= n
	}
	if totalTasks != 0 {
		countByState[Pending] = totalTasks
	}
}

// Fold adds at most limit deltas (changes of counts) to the stored counts and returns their number. It pauses the batches whose abort rule
// is now met and returns their ids in pausedBatches. While one replica folds, Fold on another replica returns 0.
func (s batches) Fold(ctx context.Context, limit int) (folded int, pausedBatches []int64, err error) {
	const deltas = `SELECT id FROM batch_deltas ORDER BY id LIMIT $1`
	waiting, err := collect(ctx, s.readSession(), singleColumn[int64], deltas, 1)
	if err != nil || len(waiting) == 0 {
		return 0, nil, err
	}
	err = s.write(ctx, func(tx session) error {
		folded, pausedBatches = 0, nil
		if s.tryFold != "" {
			if mine, err := queryOne(ctx, tx, singleColumn[bool], s.tryFold); err != nil || !mine {
				return err
			}
		}
		list, err := collect(ctx, tx, singleColumn[int64], deltas, limit)
		if err != nil || len(list) == 0 {
			return err
		}
		batches, err := tx.foldDeltas(ctx, list, limit)
		if err != nil {
			return err
		}
		folded = len(list)
		pausedBatches, err = tx.pauseByAbortRules(ctx, batches)
		return err
	})
	if err != nil {
		return 0, nil, fmt.Errorf("folding counts: %w", err)
	}
	return folded, pausedBatches, nil
}

// deltasToFold selects the rows of batch_deltas with an id in {ids}. $2 and $3 are the lowest and the highest id. The condition on $2 and
// $3 is redundant, but without it a plan made for an empty table would scan the list of ids for each row.
const deltasToFold = `batch_deltas AS d WHERE d.id BETWEEN $2 AND $3 AND (d.id IN (SELECT id FROM {ids})) IS TRUE`

// batchDeltasToFold selects the deltas to fold whose batch still exists. The delta of a deleted batch changes only the counts of the pool of the
// batch.
const batchDeltasToFold = `(SELECT d.batch, d.state, d.n, d.at FROM ` + deltasToFold + `) AS d {batch of d}`

const foldedBatches = `SELECT DISTINCT d.batch FROM ` + batchDeltasToFold

func foldStatements() []string {
	return []string{
		`INSERT INTO pool_counts (pool, state, n) SELECT d.pool, d.state, sum(d.n) FROM ` + deltasToFold + ` GROUP BY d.pool, d.state
			ON CONFLICT (pool, state) DO UPDATE SET n = pool_counts.n + excluded.n`,
		`INSERT INTO batch_counts (batch, state, n) SELECT d.batch, d.state, sum(d.n) FROM ` + batchDeltasToFold + ` WHERE TRUE GROUP BY d.batch, d.state
			ON CONFLICT (batch, state) DO UPDATE SET n = batch_counts.n + excluded.n`,
		`INSERT INTO batch_rates (batch, at, n) SELECT d.batch, max(d.at), sum(d.n) FROM ` + batchDeltasToFold + ` WHERE d.n > 0 AND ` + ranToEndSQL + ` GROUP BY d.batch`,
		addProgress,
		`DELETE FROM ` + deltasToFold,
	}
}

// updateListed updates the columns of batch $1 by which BatchFilter selects and orders. It updates only one batch, so that no query plan
// reads all batches.
const updateListed = `
	UPDATE batches AS b SET failed_tasks = c.failed, ended_at = CASE WHEN c.ended >= b.total THEN coalesce(b.ended_at, {now}) END
	FROM (SELECT coalesce(sum(n), 0) AS ended, coalesce(sum(CASE WHEN state IN ('failed', 'timed_out') THEN n ELSE 0 END), 0) AS failed
		FROM batch_counts WHERE batch = $1) AS c
	WHERE b.id = $1 AND (b.failed_tasks <> c.failed OR (c.ended >= b.total) <> (b.ended_at IS NOT NULL))`

// deleteOldRates deletes about $2 rows of batch_rates older than $1 ms. A fold inserts at most $2 rows, so the table does not grow.
const deleteOldRates = `
	DELETE FROM batch_rates WHERE at <= (
		SELECT max(at) FROM (SELECT at FROM batch_rates ORDER BY at LIMIT $2) AS oldest WHERE at <= (SELECT {now}) - $1 * {ms})`

// foldDeltas adds the rows of batch_deltas with deltaIDs (ascending) to the counts, and returns the ids of the changed batches. It also deletes
// about limit outdated rows of batch_rates. The caller must hold the lock that only one fold can hold (tryFold).
func (s session) foldDeltas(ctx context.Context, deltaIDs []int64, limit int) (changedBatches []int64, err error) {
	args := []any{idsToJSONArray(deltaIDs...), deltaIDs[0], deltaIDs[len(deltaIDs)-1]}
	batches, err := collect(ctx, s, singleColumn[int64], foldedBatches, args...)
	if err != nil {
		return nil, err
	}
	for _, query := range foldStatements() {
		if _, err := s.exec(ctx, query, args...); err != nil {
			return nil, err
		}
	}
	slices.Sort(batches) // all code locks batches in this order
	for _, batch := range batches {
		if _, err := s.exec(ctx, updateListed, batch); err != nil {
			return nil, err
		}
	}
	_, err = s.exec(ctx, deleteOldRates, recentMillis, limit)
	return batches, err
}

// endedAndFailedSQL selects two numbers for batch b: the number of tasks that succeeded, failed or timed out, and the number of tasks that
// failed or timed out.
const endedAndFailedSQL = `(SELECT coalesce(CAST(sum(n) AS bigint), 0) FROM (` + batchCountsSQL + `) AS c WHERE c.batch = b.id AND ` + ranToEndSQL + `),
	(SELECT coalesce(CAST(sum(n) AS bigint), 0) FROM (` + batchCountsSQL + `) AS c WHERE c.batch = b.id AND state IN ('failed', 'timed_out'))`

// pauseByAbortRules pauses the batches in batchIDs whose abort rule is met, and returns the ids of the paused batches.
func (s session) pauseByAbortRules(ctx context.Context, batchIDs []int64) (pausedIDs []int64, err error) {
	type reading struct {
		Batch
		sinceEnded, sinceFailed int64
		ended, failed           int64
	}
	candidates, err := collect(ctx, s, func(r *reading) []any {
		return append(batchScanDest(&r.Batch), &r.sinceEnded, &r.sinceFailed, &r.ended, &r.failed)
	}, `
		SELECT `+batchColumns+`, b.abort_ended, b.abort_failed, `+endedAndFailedSQL+`
		FROM batches b
		WHERE b.id IN (SELECT id FROM {ids}) AND b.abort_min > 0 AND b.paused IS FALSE AND b.cancelled_at IS NULL
		ORDER BY b.id FOR UPDATE OF b`, idsToJSONArray(batchIDs...))
	if err != nil {
		return nil, fmt.Errorf("reading abort rules: %w", err)
	}
	var pausedBatches []int64
	for _, c := range candidates {
		ended, failed := c.ended-c.sinceEnded, c.failed-c.sinceFailed
		if ended < c.Abort.Min || float64(failed) < c.Abort.Failure*float64(ended) {
			continue
		}
		reason := fmt.Sprintf("%d of %d failed", failed, ended)
		if err := s.pauseBatch(ctx, abortRuleActor, c.Batch, reason); err != nil {
			return nil, err
		}
		pausedBatches = append(pausedBatches, c.ID)
	}
	return pausedBatches, nil
}

const abortRuleActor = "abort rule"

// Progress is the number of tasks of a batch that had ended at a given time.
type Progress struct {
	At     time.Time
	Ended  int64
	Failed int64 // failed or timed out; included in Ended
}

// addProgress adds the folded deltas to batch_progress. Each row covers one period in the life of a batch. The periods become longer with
// the age of the batch, from 5 s up to one day.
const addProgress = `
	INSERT INTO batch_progress (batch, since_ms, at, ended, failed)
	SELECT batch, age / step * step, at, ended, failed FROM (
		SELECT batch, at, ended, failed, age, CASE
			WHEN age < 300000 THEN 5000 WHEN age < 3600000 THEN 30000 WHEN age < 43200000 THEN 300000
			WHEN age < 604800000 THEN 3600000 WHEN age < 7776000000 THEN 21600000 ELSE 86400000 END AS step
		FROM (SELECT batch, at, ended, failed, CASE WHEN at > began THEN {since began} ELSE 0 END AS age FROM (
			SELECT d.batch, max(d.at) AS at, sum(d.n) AS ended, sum(CASE WHEN d.state IN ('failed', 'timed_out') THEN d.n ELSE 0 END) AS failed,
				max(CASE WHEN b.not_before > b.created_at THEN b.not_before ELSE b.created_at END) AS began
			FROM ` + batchDeltasToFold + ` GROUP BY d.batch) AS moved) AS aged) AS stepped
	WHERE step > 0
	ON CONFLICT (batch, since_ms) DO UPDATE SET
		at = excluded.at, ended = batch_progress.ended + excluded.ended, failed = batch_progress.failed + excluded.failed`

// Progress returns the progress of a batch up to the last fold, oldest first. It reads no tasks.
func (s batches) Progress(ctx context.Context, batch int64) ([]Progress, error) {
	steps, err := collect(ctx, s.readSession(), func(p *Progress) []any { return []any{&p.At, &p.Ended, &p.Failed} },
		`SELECT at, ended, failed FROM batch_progress WHERE batch = $1 ORDER BY since_ms`, batch)
	if err != nil {
		return nil, fmt.Errorf("reading the progress of batch %d: %w", batch, err)
	}
	for i := 1; i < len(steps); i++ {
		steps[i].Ended += steps[i-1].Ended
		steps[i].Failed += steps[i-1].Failed
	}
	return steps, nil
}
