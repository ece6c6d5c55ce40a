package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// LapseCutoffs decides which leases have ended. For each length of a lease (Grant.LongestLease) it has a time. A lease of this length has ended
// if its lease_until is before this time. A lease of a length without a time has not ended.
type LapseCutoffs map[time.Duration]time.Time

// rowsJSON returns the cutoffs as a JSON array, which is an argument of SQL statements, and the latest time in the cutoffs.
func (l LapseCutoffs) rowsJSON() (rowsJSON string, latest time.Time) {
	type row struct {
		Lease  int64 `json:"lease_ms"`
		Before int64 `json:"before_ms"`
	}
	list := make([]row, 0, len(l))
	for lease, before := range l {
		list = append(list, row{Lease: lease.Milliseconds(), Before: before.UnixMilli()})
		if before.After(latest) {
			latest = before
		}
	}
	return rowsToJSONArray(list), latest
}

// Reap ends at most limit grants whose lease has ended according to cutoffs, the earliest first. decideState decides the states of their tasks.
// Replicas may call Reap concurrently, because it skips grants that another transaction ends or renews. If one grant cannot be ended, Reap
// ends the other grants and also returns the error.
func (s grants) Reap(ctx context.Context, cutoffs LapseCutoffs, limit int, decideState DecideTaskState) ([]Reaped, error) {
	rows, latest := cutoffs.rowsJSON()
	tasks, err := collect(ctx, s.readSession(), singleColumn[int64], `
		SELECT g.task FROM {lapses} JOIN grants g ON `+longestLease+` = lapses.lease_ms
		WHERE g.lease_until < {epoch} + lapses.before_ms * {ms} AND g.lease_until < {epoch} + $2 * {ms}
		ORDER BY g.lease_until, g.task LIMIT $3`, rows, latest.UnixMilli(), limit)
	if err != nil {
		return nil, fmt.Errorf("finding lapsed grants: %w", err)
	}
	if len(tasks) == 0 {
		return nil, nil
	}
	reaped, err := s.reapTasks(ctx, tasks, cutoffs, decideState)
	if err == nil || len(tasks) == 1 || ctx.Err() != nil {
		return reaped, err
	}
	var failures []error
	for _, task := range tasks {
		one, err := s.reapTasks(ctx, []int64{task}, cutoffs, decideState)
		reaped, failures = append(reaped, one...), append(failures, err)
	}
	return reaped, errors.Join(failures...)
}

// reapTasks ends the grants of the tasks taskIDs in one transaction, except grants whose lease has not ended according to cutoffs.
func (s grants) reapTasks(ctx context.Context, taskIDs []int64, cutoffs LapseCutoffs, decideState DecideTaskState) ([]Reaped, error) {
	var endings []grantEnding
	err := s.write(ctx, func(tx session) (err error) {
		endings, err = tx.lockLapsedGrants(ctx, taskIDs, cutoffs)
		if err != nil || len(endings) == 0 {
			return err
		}
		for i := range endings {
			endings[i].setTaskState(decideState, 0)
		}
		return tx.endGrants(ctx, endings)
	})
	if err != nil {
		return nil, fmt.Errorf("reaping grants: %w", err)
	}
	reaped := make([]Reaped, len(endings))
	for i, e := range endings {
		reaped[i] = Reaped{Grant: e.grant, State: e.settlement.State}
	}
	return reaped, nil
}

// lockLapsedGrants locks the tasks, then their grants. It returns only the grants whose lease has ended according to cutoffs, because a grant
// may have been renewed since the search.
func (s session) lockLapsedGrants(ctx context.Context, taskIDs []int64, cutoffs LapseCutoffs) ([]grantEnding, error) {
	subjects, err := collect(ctx, s, endingTaskScanDest, `
		SELECT `+endingTaskColumns+` FROM tasks t JOIN batches b ON b.id = t.batch
		WHERE t.id IN (SELECT id FROM {ids}) ORDER BY t.id FOR UPDATE OF t SKIP LOCKED`, idsToJSONArray(taskIDs...))
	if err != nil {
		return nil, fmt.Errorf("locking tasks: %w", err)
	}
	byID := map[int64]endingTask{}
	locked := make([]int64, len(subjects))
	for i, task := range subjects {
		byID[task.id], locked[i] = task, task.id
	}
	grants, err := collect(ctx, s, grantScanDest, `
		SELECT `+grantOnlyColumns+` FROM grants g WHERE g.task IN (SELECT id FROM {ids}) ORDER BY g.task FOR UPDATE`, idsToJSONArray(locked...))
	if err != nil {
		return nil, fmt.Errorf("locking grants: %w", err)
	}
	var endings []grantEnding
	for _, g := range grants {
		if g.LeaseUntil.Before(cutoffs[g.LongestLease]) {
			endings = append(endings, grantEnding{task: byID[g.Task], grant: g, cause: ByLapse, event: "task.lapsed", actor: reaperActor})
		}
	}
	return endings, nil
}

// NextLapse returns the time left until the next lease ends. left is negative if the lease has ended and its grant is not reaped yet. found
// is false if there are no grants.
func (s grants) NextLapse(ctx context.Context) (left time.Duration, found bool, err error) {
	var ends, now time.Time
	err = s.readSession().scanRow(ctx, []any{&ends, &now}, `
		SELECT lease_until, {now} FROM grants ORDER BY lease_until LIMIT 1`)
	if errors.Is(err, ErrNotFound) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("finding the next lease to end: %w", err)
	}
	return ends.Sub(now), true, nil
}
