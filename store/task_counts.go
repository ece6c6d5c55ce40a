package store

import (
	"context"
	"fmt"
)

// TaskCounts is the number of tasks in each state.
type TaskCounts struct {
	ByState map[TaskState]int64
	More    bool // more than maxHeld slots are held; the running tasks beyond maxHeld are counted as pending
}

// TaskCounts returns the number of tasks of a pool in each state. If pool is empty, it counts the tasks of all pools. It reads the stored
// counts, and counts held slots up to maxHeld.
func (s tasks) TaskCounts(ctx context.Context, pool string, maxHeld int) (TaskCounts, error) {
	type count struct {
		state TaskState
		n     int64
	}
	in, args := ` WHERE pool = $2`, []any{maxHeld, pool}
	if pool == "" {
		in, args = "", args[:1]
	}
	rows, err := collect(ctx, s.readSession(), func(c *count) []any { return []any{&c.state, &c.n} }, `
		SELECT state, CAST(sum(n) AS bigint) FROM (`+poolCountsSQL+`) AS c`+in+` GROUP BY state
		UNION ALL SELECT 'dispatched', count(*) FROM (SELECT 1 FROM grants`+in+` LIMIT $1 + 1) AS held`, args...)
	if err != nil {
		return TaskCounts{}, fmt.Errorf("counting tasks: %w", err)
	}
	counts, total := TaskCounts{ByState: map[TaskState]int64{}}, int64(0)
	for _, c := range rows {
		switch {
		case c.state == queuedState:
			total = c.n
		case c.state == Dispatched && c.n > int64(maxHeld):
			counts.ByState[Dispatched], counts.More = int64(maxHeld), true
		case c.n != 0:
			counts.ByState[c.state] += c.n
		}
	}
	setPendingCount(counts.ByState, total)
	return counts, nil
}

// ErrorCount is an error text and the number of tasks that have it.
type ErrorCount struct {
	Error string // at most the first 200 characters
	Tasks int64
}

// TopErrors returns at most limit error texts of failed and timed-out tasks of a batch with their counts, most frequent first. It reads at
// most maxTasksRead tasks of each state, and counts only tasks that ended between filter.Since and filter.Until.
func (s tasks) TopErrors(ctx context.Context, filter ResultFilter, maxTasksRead, limit int) ([]ErrorCount, error) {
	const latest = `SELECT * FROM (SELECT error, finished_at FROM tasks WHERE batch = $1 AND state = '%s' LIMIT $2) AS %[1]s`
	q := &query{args: []any{filter.Batch, maxTasksRead}}
	q.text = `SELECT substr(error, 1, 200) AS text, count(*) AS n FROM (` + fmt.Sprintf(latest, Failed) + ` UNION ALL ` + fmt.Sprintf(latest, TimedOut) + `) AS t`
	q.whereTimeBetween("t.finished_at", filter.Since, filter.Until)
	q.text = q.textWithoutLimit() + ` GROUP BY text ORDER BY n DESC, text LIMIT ` + q.addArg(limit)
	return collect(ctx, s.customPlanSession(), func(e *ErrorCount) []any { return []any{&e.Error, &e.Tasks} }, q.text, q.args...)
}

// These constants bound the work of TasksByErrorPrefix. A pair is a batch and a state of its tasks.
const (
	maxFailedPerPair = 2500
	maxFailedPairs   = 20
	maxCountsRead    = 5000
)

// TasksByErrorPrefix returns at most limit failed or timed-out tasks whose errors begin with prefix, newest batches first. In each batch, failed
// and timed-out tasks are two groups. It searches the 20 newest groups that have tasks, and in each group the newest 2,500 tasks.
func (s tasks) TasksByErrorPrefix(ctx context.Context, prefix string, limit int) ([]Task, error) {
	places, err := s.batchesWithFailures(ctx)
	if err != nil {
		return nil, fmt.Errorf("finding errors: %w", err)
	}
	var found []Task
	for _, p := range places {
		list, err := collect(ctx, s.customPlanSession(), taskScanDest, tasksByErrorPrefixSQL(), p.batch, p.state, prefix, maxFailedPerPair, limit-len(found))
		if err != nil {
			return nil, fmt.Errorf("finding errors: %w", err)
		}
		if found = append(found, list...); len(found) >= limit {
			break
		}
	}
	return found, nil
}

func tasksByErrorPrefixSQL() string {
	return `
		SELECT ` + taskColumns + ` FROM (SELECT id FROM tasks WHERE batch = $1 AND state = $2 ORDER BY batch DESC, state DESC, id DESC LIMIT $4) AS w
		{task w} {batch of t} {grant of t}
		WHERE substr(t.error, 1, length(CAST($3 AS text))) = $3 ORDER BY w.id DESC LIMIT $5`
}

type batchState struct {
	batch int64
	state TaskState
}

// batchesWithFailures returns the batches that have failed or timed-out tasks according to the stored counts, one entry for each of these
// states, newest batches first.
func (s tasks) batchesWithFailures(ctx context.Context) ([]batchState, error) {
	return collect(ctx, s.customPlanSession(), func(p *batchState) []any { return []any{&p.batch, &p.state} }, batchesWithFailuresSQL(), maxCountsRead, maxFailedPairs)
}

func batchesWithFailuresSQL() string {
	return `
		SELECT DISTINCT batch, state FROM (
			SELECT * FROM (SELECT batch, state, n FROM batch_counts WHERE batch > 0 ORDER BY batch DESC, state DESC LIMIT $1) AS folded
			UNION ALL SELECT batch, state, n FROM batch_deltas WHERE id > 0) AS counted
		WHERE state IN ('failed', 'timed_out') AND n > 0 AND batch > 0 ORDER BY batch DESC, state LIMIT $2`
}
