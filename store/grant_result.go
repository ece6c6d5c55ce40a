package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// maxRecording is the maximum number of concurrent transactions of one RecordResults. They share the disk flush of a COMMIT.
const maxRecording = 8

// RecordResults records the results that devices report, and returns one outcome per result, in their order. An outcome without Err is
// committed. decideState decides the state of each task.
//
// The first result of each task is recorded in one common transaction, except results without a grant in force, with a dropped output, or
// with locked rows. These results and the later results of a task get a transaction each, in their order, so that a slow or failing result
// does not affect the others.
func (s grants) RecordResults(ctx context.Context, results []Result, decideState DecideTaskState) []ResultOutcome {
	outcomes := make([]ResultOutcome, len(results))
	left := s.recordResultsInOneTx(ctx, results, outcomes, decideState)
	var running rescue.Group
	free := make(chan struct{}, maxRecording)
	for _, indexes := range left {
		free <- struct{}{}
		running.Go(func() error {
			defer func() { <-free }()
			for _, i := range indexes {
				outcomes[i] = s.recordResult(ctx, results[i], decideState)
			}
			return nil
		})
	}
	_ = running.Wait() // Wait returns no error: each outcome has its own
	return outcomes
}

// recordResultsInOneTx records results in one transaction and sets their outcomes. unrecordedIndexesByTask has, for each task, the indexes of
// the results that it did not record. If the answer to the COMMIT was lost, unrecordedIndexesByTask is empty, and the devices send the results
// again.
func (s grants) recordResultsInOneTx(ctx context.Context, results []Result, outcomes []ResultOutcome, decideState DecideTaskState) (unrecordedIndexesByTask map[int64][]int) {
	unrecordedIndexesByTask = make(map[int64][]int, len(results))
	var firsts []reportedRow
	for i, r := range results {
		if len(unrecordedIndexesByTask[r.Task]) == 0 && !r.Dropped {
			firsts = append(firsts, reportedRow{N: i, Task: r.Task, Token: r.Token, Device: r.Device})
		}
		unrecordedIndexesByTask[r.Task] = append(unrecordedIndexesByTask[r.Task], i)
	}
	var endings []grantEnding
	err := rescue.Call(func() error {
		return s.write(ctx, func(tx session) (err error) {
			endings, err = tx.endReportedGrants(ctx, firsts, results, decideState)
			return err
		})
	})
	if errors.Is(err, ErrOutcomeUnknown) {
		for i := range outcomes {
			outcomes[i].Err = fmt.Errorf("recording results: %w", err)
		}
		return nil
	}
	if err != nil {
		return unrecordedIndexesByTask
	}
	for _, e := range endings {
		outcomes[e.n] = ResultOutcome{Kind: ResultRecorded, Ended: &e.grant, State: e.settlement.State, Last: e.endsLastTaskOfDevice()}
		unrecordedIndexesByTask[e.grant.Task] = unrecordedIndexesByTask[e.grant.Task][1:]
	}
	return unrecordedIndexesByTask
}

// endReportedGrants ends the grants in force of firstResults. firstResults has the first result of each task, and N is the index of a result in
// results. endReportedGrants skips locked grants. To lock a row, it never waits, so it cannot be part of a deadlock.
func (s session) endReportedGrants(ctx context.Context, firstResults []reportedRow, results []Result, decideState DecideTaskState) ([]grantEnding, error) {
	endings, err := collect(ctx, s, endingScanDest, `
		SELECT reported.n, NOT EXISTS (SELECT 1 FROM tasks o WHERE o.device = t.device AND o.state = `+hiddenPending+` AND o.id <> t.id)
			AND d.blocked IS NOT TRUE, `+endingTaskColumns+`, `+grantOnlyColumns+`
		FROM {reported} JOIN grants g ON g.task = reported.task AND g.token = reported.token AND g.device = reported.device
			JOIN tasks t ON t.id = g.task {batch of t} {device of t}
		ORDER BY t.id FOR UPDATE OF t, g SKIP LOCKED`, rowsToJSONArray(firstResults))
	if err != nil || len(endings) == 0 {
		return nil, err
	}
	for i := range endings {
		endings[i].applyResult(results[endings[i].n], decideState)
	}
	return endings, s.endGrants(ctx, endings)
}

// maxLateResults is the maximum number of stored results per device and kind (late or unknown).
const maxLateResults = 100

func (s grants) recordResult(ctx context.Context, result Result, decideState DecideTaskState) ResultOutcome {
	var outcome ResultOutcome
	err := rescue.Call(func() error {
		return s.write(ctx, func(tx session) (err error) {
			outcome, err = tx.handleResult(ctx, result, decideState)
			return err
		})
	})
	if err != nil {
		return ResultOutcome{Err: fmt.Errorf("recording a result of task %d: %w", result.Task, err)}
	}
	return outcome
}

// handleResult records one result. decideState decides the state of the task.
func (s session) handleResult(ctx context.Context, result Result, decideState DecideTaskState) (ResultOutcome, error) {
	// Every transaction that creates or ends a grant locks its task first. So while this transaction holds the lock, no other transaction
	// creates or ends the grant.
	task, err := s.lockTask(ctx, result.Task)
	if errors.Is(err, ErrNotFound) {
		return s.recordUnknownResult(ctx, result)
	}
	if err != nil {
		return ResultOutcome{}, fmt.Errorf("locking the task: %w", err)
	}
	grant, err := s.lockGrant(ctx, result.Task)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return ResultOutcome{}, fmt.Errorf("locking the grant: %w", err)
	}
	if grant.Task != 0 && grant.Token == result.Token && grant.Device == result.Device {
		return s.endGrantByResult(ctx, result, task, grant, decideState)
	}
	return s.recordResultAfterEnd(ctx, result, task, grant)
}

// lockTask locks a task and returns it with the settings of its batch, or ErrNotFound.
func (s session) lockTask(ctx context.Context, task int64) (endingTask, error) {
	return queryOne(ctx, s, endingTaskScanDest,
		`SELECT `+endingTaskColumns+` FROM tasks t JOIN batches b ON b.id = t.batch WHERE t.id = $1 FOR UPDATE OF t`, task)
}

func (s session) lockGrant(ctx context.Context, task int64) (Grant, error) {
	return queryOne(ctx, s, grantScanDest, `SELECT `+grantOnlyColumns+` FROM grants g WHERE g.task = $1 FOR UPDATE`, task)
}

// endGrantByResult ends grant, the grant of task, because of result.
func (s session) endGrantByResult(ctx context.Context, result Result, task endingTask, grant Grant, decideState DecideTaskState) (ResultOutcome, error) {
	e := grantEnding{task: task, grant: grant}
	e.applyResult(result, decideState)
	if err := s.endGrants(ctx, []grantEnding{e}); err != nil {
		return ResultOutcome{}, err
	}
	if err := s.recordDroppedOutput(ctx, result); err != nil {
		return ResultOutcome{}, err
	}
	return ResultOutcome{Kind: ResultRecorded, Ended: &e.grant, State: e.settlement.State}, nil
}

// recordResultAfterEnd records a result whose grant has ended or never existed. grant is the present grant of the task, if there is one, and is
// not changed.
func (s session) recordResultAfterEnd(ctx context.Context, result Result, task endingTask, grant Grant) (ResultOutcome, error) {
	var endedBy EndCause
	var keptLate bool
	if err := s.scanRow(ctx, []any{&endedBy, &keptLate}, `
		SELECT (SELECT ended_by FROM attempts WHERE token = $1 AND task = $2 AND device = $3),
			(SELECT known FROM late_results WHERE token = $1 AND task = $2 AND device = $3)`, result.Token, result.Task, result.Device); err != nil {
		return ResultOutcome{}, fmt.Errorf("reading the attempt: %w", err)
	}
	state := task.state
	if grant.Task != 0 {
		state = Dispatched
	}
	switch {
	case endedBy.isResult():
		return ResultOutcome{Kind: ResultDuplicate, State: state}, nil
	case endedBy != "", keptLate:
		return s.recordLateResult(ctx, result, state)
	default:
		return s.recordUnknownResult(ctx, result)
	}
}

// recordLateResult stores a late result. state is the present state of the task. A late success also ends a task that waits for a retry or has
// timed out.
func (s session) recordLateResult(ctx context.Context, result Result, state TaskState) (ResultOutcome, error) {
	if err := s.storeLateResult(ctx, result, true); err != nil {
		return ResultOutcome{}, err
	}
	if result.Cause != BySuccess || (state != Pending && state != TimedOut) {
		return ResultOutcome{Kind: ResultLate, State: state}, nil
	}
	if _, err := s.exec(ctx, `
		UPDATE tasks SET state = 'succeeded', finished_at = {now}, retry_at = NULL, output = $2::json, error = $3, output_dropped = $4 WHERE id = $1`,
		result.Task, jsonTextOrNull(result.Output), result.Error, result.Dropped); err != nil {
		return ResultOutcome{}, fmt.Errorf("ending the task by a late result: %w", err)
	}
	s.pendingNews.addDevices(result.Device) // this task no longer waits, so the work of the device changed
	if _, err := s.exec(ctx, `
		INSERT INTO events (at, kind, actor, actor_kind, pool, batch, task, device, token, detail)
		SELECT {now}, 'task.succeeded_late', device, 'device', pool, batch, id, device, $2, $3 FROM tasks WHERE id = $1`,
		result.Task, result.Token, string(state)); err != nil {
		return ResultOutcome{}, err
	}
	return ResultOutcome{Kind: ResultLate, State: Succeeded}, nil
}

// recordUnknownResult handles a result whose grant is not in the ledger. It stores the result only if the ledger has given the token of the
// result to some grant.
func (s session) recordUnknownResult(ctx context.Context, result Result) (ResultOutcome, error) {
	last, err := queryOne(ctx, s, singleColumn[int64], `SELECT {last token}`)
	if err != nil {
		return ResultOutcome{}, fmt.Errorf("reading the last token: %w", err)
	}
	if result.Token > 0 && result.Token <= last {
		if err := s.storeLateResult(ctx, result, false); err != nil {
			return ResultOutcome{}, err
		}
	}
	return ResultOutcome{Kind: ResultUnknown}, nil
}

// storeLateResult stores a late or unknown result once, with an event. Each device has at most maxLateResults results of each kind (late or
// unknown). The two kinds are counted separately, so that unknown results, which a device may invent, cannot displace its late results.
func (s session) storeLateResult(ctx context.Context, result Result, isLate bool) error {
	if s.lockLateResults != "" {
		if _, err := s.exec(ctx, s.lockLateResults, result.Device); err != nil {
			return fmt.Errorf("locking the stored results: %w", err)
		}
	}
	n, err := s.exec(ctx, `
		INSERT INTO late_results (device, task, token, known, cause, output, error, received_at)
		SELECT $1, $2, $3, $4, $5, $6::json, $7, {now}
		WHERE (SELECT count(*) FROM late_results WHERE device = $1 AND known = $4) < $8
		ON CONFLICT DO NOTHING`,
		result.Device, result.Task, result.Token, isLate, string(result.Cause), jsonTextOrNull(result.Output), result.Error, maxLateResults)
	if err != nil {
		return fmt.Errorf("storing a result: %w", err)
	}
	if n == 0 {
		return nil
	}
	kind := "result.unknown"
	if isLate {
		kind = "result.late"
	}
	if err := s.recordEvent(ctx, Event{Kind: kind, Actor: result.Device, ActorKind: ActorDevice, Task: result.Task, Device: result.Device, Token: result.Token, Detail: string(result.Cause)}); err != nil {
		return err
	}
	return s.recordDroppedOutput(ctx, result)
}

// recordDroppedOutput records an event if the output of the result was too large.
func (s session) recordDroppedOutput(ctx context.Context, result Result) error {
	if !result.Dropped {
		return nil
	}
	if _, err := s.exec(ctx, `
		INSERT INTO events (at, kind, actor, actor_kind, pool, batch, task, device, token, detail)
		SELECT {now}, 'result.output_dropped', $2, 'device', pool, batch, id, $2, $3, 'too large' FROM tasks WHERE id = $1`,
		result.Task, result.Device, result.Token); err != nil {
		return fmt.Errorf("recording the dropped-output event: %w", err)
	}
	return nil
}
