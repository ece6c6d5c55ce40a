package store

import (
	"context"
	"fmt"
)

// TaskCounts is how many tasks are in each state.
type TaskCounts struct {
	ByState map[TaskState]int64
	More    bool // slots are held beyond those that were counted: they are among the pending
}

// TaskCounts counts tasks by state, of one pool or, with an empty name, of all,
// and slots held up to heldMax. It reads the counts of pools, never the tasks.
func (s tasks) TaskCounts(ctx context.Context, pool string, heldMax int) (TaskCounts, error) {
	type count struct {
		state TaskState
		n     int64
	}
	in, args := ` WHERE pool = $2`, []any{heldMax, pool}
	if pool == "" {
		in, args = "", args[:1]
	}
	rows, err := collect(ctx, s.read(), func(c *count) []any { return []any{&c.state, &c.n} }, `
		SELECT state, CAST(sum(n) AS bigint) FROM (`+countedOfPools+`) AS c`+in+` GROUP BY state
		UNION ALL SELECT 'dispatched', count(*) FROM (SELECT 1 FROM grants`+in+` LIMIT $1 + 1) AS held`, args...)
	if err != nil {
		return TaskCounts{}, fmt.Errorf("counting tasks: %w", err)
	}
	counts, total := TaskCounts{ByState: map[TaskState]int64{}}, int64(0)
	for _, c := range rows {
		switch {
		case c.state == queuedState:
			total = c.n
		case c.state == Dispatched && c.n > int64(heldMax):
			counts.ByState[Dispatched], counts.More = int64(heldMax), true
		case c.n != 0:
			counts.ByState[c.state] += c.n
		}
	}
	setPending(counts.ByState, total)
	return counts, nil
}

// ErrorCount is an error text and how many tasks had it.
type ErrorCount struct {
	Error string // its beginning, up to 200 characters
	Tasks int64
}

// TopErrors groups the errors of the tasks of a batch that failed or timed out,
// most frequent first. It looks at no more than sample of them in each state, and counts
// those that ended in the times of the filter.
func (s tasks) TopErrors(ctx context.Context, f ResultFilter, sample, limit int) ([]ErrorCount, error) {
	const latest = `SELECT * FROM (SELECT error, finished_at FROM tasks WHERE batch = $1 AND state = '%s' LIMIT $2) AS %[1]s`
	q := &query{args: []any{f.Batch, sample}}
	q.text = `SELECT substr(error, 1, 200) AS text, count(*) AS n FROM (` + fmt.Sprintf(latest, Failed) + ` UNION ALL ` + fmt.Sprintf(latest, TimedOut) + `) AS t`
	f.where(q)
	q.text = q.whole() + ` GROUP BY text ORDER BY n DESC, text LIMIT ` + q.arg(limit)
	return collect(ctx, s.planned(), func(e *ErrorCount) []any { return []any{&e.Error, &e.Tasks} }, q.text, q.args...)
}
