package store

import (
	"context"
	"fmt"
)

// Bounds of FailedWith: failedEach newest tasks per batch and state, failedPlaces pairs of batch and state, and countsLooked counts that
// are read to find these pairs.
const (
	failedEach   = 2500
	failedPlaces = 20
	countsLooked = 5000
)

// FailedWith returns at most limit tasks that failed or timed out and whose errors begin with start, newest batches first. It searches the
// newest 2,500 tasks of each pair of batch and state that has such tasks, for the newest 20 pairs, and no other tasks.
func (s tasks) FailedWith(ctx context.Context, start string, limit int) ([]Task, error) {
	places, err := s.failedPlaces(ctx)
	if err != nil {
		return nil, fmt.Errorf("looking for errors: %w", err)
	}
	var found []Task
	for _, p := range places {
		list, err := collect(ctx, s.planned(), taskDest, failedWithText(), p.batch, p.state, start, failedEach, limit-len(found))
		if err != nil {
			return nil, fmt.Errorf("looking for errors: %w", err)
		}
		if found = append(found, list...); len(found) >= limit {
			break
		}
	}
	return found, nil
}

func failedWithText() string {
	return `
		SELECT ` + taskColumns + ` FROM (SELECT id FROM tasks WHERE batch = $1 AND state = $2 ORDER BY batch DESC, state DESC, id DESC LIMIT $4) AS w
		{task w} {batch of t} {grant of t}
		WHERE substr(t.error, 1, length(CAST($3 AS text))) = $3 ORDER BY w.id DESC LIMIT $5`
}

// failedPlace is a batch and a state of its tasks.
type failedPlace struct {
	batch int64
	state TaskState
}

// failedPlaces returns the newest pairs of batch and state that have tasks according to the counts.
func (s tasks) failedPlaces(ctx context.Context) ([]failedPlace, error) {
	return collect(ctx, s.planned(), func(p *failedPlace) []any { return []any{&p.batch, &p.state} }, failedPlacesText(), countsLooked, failedPlaces)
}

func failedPlacesText() string {
	return `
		SELECT DISTINCT batch, state FROM (
			SELECT * FROM (SELECT batch, state, n FROM batch_counts WHERE batch > 0 ORDER BY batch DESC, state DESC LIMIT $1) AS folded
			UNION ALL SELECT batch, state, n FROM batch_deltas WHERE id > 0) AS counted
		WHERE state IN ('failed', 'timed_out') AND n > 0 AND batch > 0 ORDER BY batch DESC, state LIMIT $2`
}
