package store

import (
	"context"
	"fmt"
)

// Suppression is a task that a policy refused, and the reason.
type Suppression struct {
	Task   int64
	Reason string
}

// Suppress ends those tasks in suppressions that wait, with the reason as their error. The result has one value per entry of suppressions,
// which is true if this entry ended its task. If several calls or entries name the same task, only one of them gets true.
func (s tasks) Suppress(ctx context.Context, suppressions []Suppression) ([]bool, error) {
	if len(suppressions) == 0 {
		return nil, nil
	}
	var ended map[int64]bool
	err := s.write(ctx, func(tx session) (err error) {
		ended, err = tx.tasks().suppress(ctx, suppressions)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("suppressing tasks: %w", err)
	}
	done := make([]bool, len(suppressions))
	for i, one := range suppressions {
		done[i] = ended[one.Task]
		delete(ended, one.Task) // so that a task that is listed twice gets true only once
	}
	return done, nil
}

// suppress ends those tasks in suppressions that wait. The keys of its result are the ids of the ended tasks. It locks the tasks in the
// order of their ids. All code uses this order, so that deadlocks are avoided.
func (s tasksIn) suppress(ctx context.Context, suppressions []Suppression) (map[int64]bool, error) {
	ends := make([]taskEnd, 0, len(suppressions))
	named := make(map[int64]bool)
	for _, one := range suppressions {
		if !named[one.Task] {
			ends = append(ends, taskEnd(one))
		}
		named[one.Task] = true
	}
	if _, err := s.exec(ctx, `SELECT t.id FROM {ends} JOIN tasks t ON t.id = ends.task ORDER BY t.id {lock t}`, toJSONInput(ends)); err != nil {
		return nil, fmt.Errorf("locking tasks: %w", err)
	}
	endedIDs, err := s.endLocked(ctx, waitingEndRule{state: Suppressed, actor: systemActor}, ends)
	ended := make(map[int64]bool)
	for _, task := range endedIDs {
		ended[task] = true
	}
	return ended, err
}
