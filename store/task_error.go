package store

import (
	"context"
	"fmt"
)

// These are the bounds of TasksByErrorPrefix. A pair is a batch and a state of its tasks. At most maxFailedPairs pairs are searched, and in
// each pair the newest maxFailedPerPair tasks. To find the pairs, at most maxCountsRead counts are read.
const (
	maxFailedPerPair = 2500
	maxFailedPairs   = 20
	maxCountsRead    = 5000
)

// TasksByErrorPrefix returns at most limit failed or timed-out tasks whose errors begin with prefix, newest batches first. A pair is a
// batch and a state (failed or timed out). TasksByErrorPrefix searches only the newest 20 pairs that have tasks, and in each pair only the
// newest 2,500 tasks.
func (s tasks) TasksByErrorPrefix(ctx context.Context, prefix string, limit int) ([]Task, error) {
	places, err := s.batchesWithFailures(ctx)
	if err != nil {
		return nil, fmt.Errorf("finding errors: %w", err)
	}
	var found []Task
	for _, p := range places {
		list, err := collect(ctx, s.customPlanSession(), taskDest, tasksByErrorPrefixSQL(), p.batch, p.state, prefix, maxFailedPerPair, limit-len(found))
		if err != nil {
			return nil, fmt.Errorf("finding errors: %w", err)
		}
		if found = append(found, list...); len(found) >= limit {
			break
		}
	}
	return found, nil
}

// tasksByErrorPrefixSQL returns the statement of TasksByErrorPrefix.
func tasksByErrorPrefixSQL() string {
	return `
		SELECT ` + taskColumns + ` FROM (SELECT id FROM tasks WHERE batch = $1 AND state = $2 ORDER BY batch DESC, state DESC, id DESC LIMIT $4) AS w
		{task w} {batch of t} {grant of t}
		WHERE substr(t.error, 1, length(CAST($3 AS text))) = $3 ORDER BY w.id DESC LIMIT $5`
}

// batchState is a batch and one state of its tasks.
type batchState struct {
	batch int64
	state TaskState
}

// batchesWithFailures returns pairs of a batch and a state (failed or timed out), newest batches first. It returns the pairs that have
// tasks according to the stored counts.
func (s tasks) batchesWithFailures(ctx context.Context) ([]batchState, error) {
	return collect(ctx, s.customPlanSession(), func(p *batchState) []any { return []any{&p.batch, &p.state} }, batchesWithFailuresSQL(), maxCountsRead, maxFailedPairs)
}

// batchesWithFailuresSQL returns the statement of batchesWithFailures.
func batchesWithFailuresSQL() string {
	return `
		SELECT DISTINCT batch, state FROM (
			SELECT * FROM (SELECT batch, state, n FROM batch_counts WHERE batch > 0 ORDER BY batch DESC, state DESC LIMIT $1) AS folded
			UNION ALL SELECT batch, state, n FROM batch_deltas WHERE id > 0) AS counted
		WHERE state IN ('failed', 'timed_out') AND n > 0 AND batch > 0 ORDER BY batch DESC, state LIMIT $2`
}
