package store

import (
	"context"
	"slices"
)

// batchesSampled is the maximum number of oldest batches in a sample. A sample also has at most this number of later batches, which are spread
// evenly.
const batchesSampled = 64

const maxCapacity = 10_000 // maximum capacity of a pool

// stratum is a batch from which a part of the sample is taken.
type stratum struct {
	batch       int64
	first, last int64   // ids of the first and the last open task of the batch
	weight      float64 // number of waiting tasks in this batch and in the batches that it represents
}

// spreadSample reads at most maxTasks waiting tasks of a pool or a batch (scope), spread evenly over all waiting tasks. totalWaiting is the
// number of all waiting tasks. pool is the name of the pool, even if scope is a batch. Two points of the sample may find the same task, so
// the sample may be smaller than maxTasks.
func (s tasks) spreadSample(ctx context.Context, scope TaskScope, pool string, maxTasks int) (sample []waitingTask, totalWaiting int64, err error) {
	oldest, others, err := s.batchesToSample(ctx, scope, pool)
	if err != nil {
		return nil, 0, err
	}
	waiting, err := s.countWaiting(ctx, append(slices.Clone(oldest), others...))
	if err != nil {
		return nil, 0, err
	}
	total := waiting[scope.Batch]
	if scope.Batch == 0 {
		counts, err := s.TaskCounts(ctx, pool, maxCapacity)
		if err != nil {
			return nil, 0, err
		}
		total = counts.ByState[Pending]
	}
	spans, err := collect(ctx, s.readSession(), func(t *stratum) []any { return []any{&t.batch, &t.first, &t.last} }, openRangesSQL,
		idsToJSONArray(append(slices.Clone(oldest), others...)...))
	if err != nil {
		return nil, 0, err
	}
	setStratumWeights(spans, waiting, len(oldest), total)
	list, err := collect(ctx, s.readSession(), waitingTaskScanDest, pointsText, rowsToJSONArray(samplePoints(spans, maxTasks)))
	slices.SortFunc(list, func(a, b waitingTask) int { return a.Compare(b.WaitingPosition) })
	list = slices.CompactFunc(list, func(a, b waitingTask) bool { return a.Task == b.Task })
	return list, max(total, int64(len(list))), err
}

// batchesToSample returns batches in scope that have waiting tasks: the oldest batches and, if there are more, some later batches (others).
// If scope is a batch, it returns only this batch.
func (s tasks) batchesToSample(ctx context.Context, scope TaskScope, pool string) (oldest, others []int64, err error) {
	if scope.Batch != 0 {
		return []int64{scope.Batch}, nil, nil
	}
	oldest, err = collect(ctx, s.readSession(), singleColumn[int64], `
		WITH RECURSIVE open(n, batch) AS (
			SELECT 1, `+nextWaitingBatchSQL("$1", ">", "0")+`
			UNION ALL SELECT n + 1, `+nextWaitingBatchSQL("$1", ">", "open.batch")+` FROM open WHERE open.batch IS NOT NULL AND n < $2)
		SELECT batch FROM open WHERE batch IS NOT NULL ORDER BY batch`, pool, batchesSampled)
	if err != nil || len(oldest) < batchesSampled {
		return oldest, nil, err
	}
	after := oldest[len(oldest)-1]
	newest, err := queryOne(ctx, s.readSession(), singleColumn[int64], `
		SELECT t.batch FROM tasks t WHERE t.pool = $1 AND t.state = 'pending' AND t.batch >= $2 AND `+isNotRunningSQL+`
		ORDER BY t.batch DESC, t.priority, t.id DESC LIMIT 1`, pool, after)
	if err != nil || newest == after {
		return oldest, nil, err
	}
	at := make([]int64, batchesSampled)
	for i := range at {
		at[i] = after + 1 + int64(float64(newest-after-1)*float64(i)/(batchesSampled-1))
	}
	others, err = collect(ctx, s.readSession(), singleColumn[int64], `
		SELECT DISTINCT batch FROM (SELECT `+nextWaitingBatchSQL("$2", ">=", "ids.id")+` AS batch FROM {ids}) AS found WHERE batch IS NOT NULL ORDER BY batch`,
		idsToJSONArray(at...), pool)
	return oldest, others, err
}

// nextWaitingBatchSQL returns the query for the first batch in the pool poolExpr that has a waiting task and an id that satisfies the
// comparison with batchExpr by operator, such as >. The lookup of each grant and an ORDER BY with all columns of the index tasks_in_line make
// Postgres choose this index, whatever the statistics of Postgres are.
func nextWaitingBatchSQL(poolExpr, operator, batchExpr string) string {
	return `(SELECT t.batch FROM tasks t WHERE t.pool = ` + poolExpr + ` AND t.state = 'pending' AND t.batch ` + operator + ` ` + batchExpr + ` AND ` + isNotRunningSQL + `
		ORDER BY t.batch, t.priority DESC, t.id LIMIT 1)`
}

// countWaiting returns the number of waiting tasks of each batch.
func (s tasks) countWaiting(ctx context.Context, batchIDs []int64) (countByBatch map[int64]int64, err error) {
	counted := make([]Batch, len(batchIDs))
	for i, id := range batchIDs {
		counted[i].ID = id
	}
	err = batches(s).fillCounts(ctx, counted)
	waiting := make(map[int64]int64, len(counted))
	for _, b := range counted {
		waiting[b.ID] = b.Counts[Pending]
	}
	return waiting, err
}

// openRangesSQL selects the first and the last open task of each batch.
const openRangesSQL = `
	SELECT ids.id,
		(SELECT t.id FROM tasks t WHERE {pending of ids} ORDER BY t.batch, t.state, t.id LIMIT 1),
		(SELECT t.id FROM tasks t WHERE {pending of ids} ORDER BY t.batch DESC, t.state DESC, t.id DESC LIMIT 1)
	FROM {ids} ORDER BY ids.id`

// setStratumWeights sets the weight of each stratum. The first oldestCount strata are the oldest batches. The weight of each of these strata is
// the number of waiting tasks of its batch. The other strata share the waiting tasks of all later batches. totalWaiting is the number of waiting
// tasks of all batches.
func setStratumWeights(strata []stratum, waitingByBatch map[int64]int64, oldestCount int, totalWaiting int64) {
	var oldestWeight, othersWeight float64
	for i := range strata {
		strata[i].weight = float64(waitingByBatch[strata[i].batch])
		if i < oldestCount {
			oldestWeight += strata[i].weight
		} else {
			othersWeight += strata[i].weight
		}
	}
	if othersWeight == 0 {
		return
	}
	for i := oldestCount; i < len(strata); i++ {
		strata[i].weight *= max(0, float64(totalWaiting)-oldestWeight) / othersWeight
	}
}

// point is a position in a batch. It stands for the first waiting task with an id >= At.
type point struct {
	Batch int64 `json:"batch"`
	At    int64 `json:"at"`
}

// samplePoints returns points at equal distances over the waiting tasks of all strata. count is the number of points.
func samplePoints(strata []stratum, count int) []point {
	var all float64
	for _, t := range strata {
		all += t.weight
	}
	list, before, i := make([]point, 0, count), 0.0, 0
	for k := range count {
		at := all * (float64(k) + 0.5) / float64(count)
		for i < len(strata)-1 && at >= before+strata[i].weight {
			before += strata[i].weight
			i++
		}
		t := strata[i]
		share := (at - before) / max(t.weight, 1)
		list = append(list, point{t.batch, t.first + int64(share*float64(t.last-t.first+1))})
	}
	return list
}

// pointsText selects the first waiting task at or after each point.
const pointsText = `
	SELECT t.id, t.batch, t.priority, t.device, t.not_before, t.not_after
	FROM (SELECT points.batch, (
			SELECT t.id FROM tasks t WHERE {pending of points} AND ` + isNotRunningSQL + `
			ORDER BY t.batch, t.state, t.id LIMIT 1) AS id
		FROM {points}) AS w {task w}
	WHERE t.batch = w.batch AND t.state = 'pending'`
