package store

import (
	"context"
	"fmt"
)

// The tasks that FailedWith looks at: the newest of those that ended in one state in one
// batch, and those of how many batches and states.
const (
	failedEach   = 2500
	failedPlaces = 20
	countsLooked = 5000
)

// FailedWith returns up to limit tasks that failed or timed out and whose errors begin with a
// text, newest batches first. It looks at the newest 2,500 in each state of the newest
// batches that have some, at 20 of these, and at no other task.
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

// failedPlace is a state of a batch.
type failedPlace struct {
	batch int64
	state TaskState
}

// failedPlaces are the newest that have tasks, by the counts.
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
