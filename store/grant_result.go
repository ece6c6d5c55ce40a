package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// maxLateResults is the maximum number of results in late_results per device and kind (late or unknown).
const maxLateResults = 100

func (s grants) recordResult(ctx context.Context, r Result, settle Settle) ResultOutcome {
	var outcome ResultOutcome
	err := rescue.Call(func() error {
		return s.write(ctx, func(tx session) (err error) {
			outcome, err = tx.grants().handleResult(ctx, r, settle)
			return err
		})
	})
	if err != nil {
		return ResultOutcome{Err: fmt.Errorf("recording a result of task %d: %w", r.Task, err)}
	}
	return outcome
}

func (s grantsIn) handleResult(ctx context.Context, r Result, settle Settle) (ResultOutcome, error) {
	// Every transaction that creates or ends a grant locks its task first. So the grant that the next statement reads stays as it is until
	// this transaction ends.
	task, err := s.lockTask(ctx, r.Task)
	if errors.Is(err, ErrNotFound) {
		return s.recordUnknown(ctx, r)
	}
	if err != nil {
		return ResultOutcome{}, fmt.Errorf("locking the task: %w", err)
	}
	grant, err := s.lockGrant(ctx, r.Task)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return ResultOutcome{}, fmt.Errorf("locking the grant: %w", err)
	}
	if grant.Task != 0 && grant.Token == r.Token && grant.Device == r.Device {
		return s.endByResult(ctx, r, task, grant, settle)
	}
	return s.recordAfterEnd(ctx, r, task, grant)
}

func (s grantsIn) lockTask(ctx context.Context, task int64) (endingTask, error) {
	return queryOne(ctx, s.session, endingTaskDest,
		`SELECT `+endingTaskColumns+` FROM tasks t JOIN batches b ON b.id = t.batch WHERE t.id = $1 {lock t}`, task)
}

func (s grantsIn) lockGrant(ctx context.Context, task int64) (Grant, error) {
	return queryOne(ctx, s.session, grantDest, `SELECT `+grantOnlyColumns+` FROM grants g WHERE g.task = $1 {lock}`, task)
}

func (s grantsIn) endByResult(ctx context.Context, r Result, task endingTask, grant Grant, settle Settle) (ResultOutcome, error) {
	e := grantEnding{task: task, grant: grant}
	e.applyResult(r, settle)
	if err := s.endGrants(ctx, []grantEnding{e}); err != nil {
		return ResultOutcome{}, err
	}
	if err := s.recordDroppedOutput(ctx, r); err != nil {
		return ResultOutcome{}, err
	}
	return ResultOutcome{Kind: ResultRecorded, Ended: &e.grant, State: e.settlement.State}, nil
}

// recordAfterEnd records a result whose grant has ended or never existed, and returns its outcome. It never changes a grant that the task
// may have now.
func (s grantsIn) recordAfterEnd(ctx context.Context, r Result, task endingTask, grant Grant) (ResultOutcome, error) {
	var endedBy EndCause
	var keptLate bool
	if err := s.scanRowArgs(ctx, `
		SELECT (SELECT ended_by FROM attempts WHERE token = $1 AND task = $2 AND device = $3),
			(SELECT known FROM late_results WHERE token = $1 AND task = $2 AND device = $3)`,
		[]any{r.Token, r.Task, r.Device}, opt(&endedBy), opt(&keptLate)); err != nil {
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
		return s.recordLate(ctx, r, state)
	default:
		return s.recordUnknown(ctx, r)
	}
}

// recordLate stores a late result. If the result is a success, and its task waits for a retry or has timed out, recordLate also ends the
// task as succeeded.
func (s grantsIn) recordLate(ctx context.Context, r Result, state TaskState) (ResultOutcome, error) {
	if err := s.storeLateResult(ctx, r, true); err != nil {
		return ResultOutcome{}, err
	}
	if r.Cause != BySuccess || (state != Pending && state != TimedOut) {
		return ResultOutcome{Kind: ResultLate, State: state}, nil
	}
	if _, err := s.exec(ctx, `
		UPDATE tasks SET state = 'succeeded', finished_at = {now}, retry_at = NULL, output = $2{json}, error = $3, output_dropped = $4 WHERE id = $1`,
		r.Task, nullText(r.Output), r.Error, r.Dropped); err != nil {
		return ResultOutcome{}, fmt.Errorf("finishing the task late: %w", err)
	}
	if _, err := s.exec(ctx, `
		INSERT INTO events (at, kind, actor, pool, batch, task, device, token, detail)
		SELECT {now}, 'task.succeeded_late', device, pool, batch, id, device, $2, $3 FROM tasks WHERE id = $1`,
		r.Task, r.Token, string(state)); err != nil {
		return ResultOutcome{}, err
	}
	return ResultOutcome{Kind: ResultLate, State: Succeeded}, nil
}

// recordUnknown stores a result whose grant is not in the ledger, except a result with a token that was never given.
func (s grantsIn) recordUnknown(ctx context.Context, r Result) (ResultOutcome, error) {
	last, err := queryOne(ctx, s.session, singleColumn[int64], `SELECT {last token}`)
	if err != nil {
		return ResultOutcome{}, fmt.Errorf("reading the last token: %w", err)
	}
	if r.Token > 0 && r.Token <= last {
		if err := s.storeLateResult(ctx, r, false); err != nil {
			return ResultOutcome{}, err
		}
	}
	return ResultOutcome{Kind: ResultUnknown}, nil
}

// storeLateResult stores a result and an event for it. A repeated result is stored only once. Per device, at most maxLateResults late
// results and at most maxLateResults unknown results are stored. The two kinds are counted separately, so that results that a device
// invents cannot displace its late results.
func (s grantsIn) storeLateResult(ctx context.Context, r Result, isLate bool) error {
	if s.lockLateResults != "" {
		if _, err := s.exec(ctx, s.lockLateResults, r.Device); err != nil {
			return fmt.Errorf("locking the stored results: %w", err)
		}
	}
	n, err := s.exec(ctx, `
		INSERT INTO late_results (device, task, token, known, cause, output, error, received_at)
		SELECT $1, $2, $3, $4, $5, $6{json}, $7, {now}
		WHERE (SELECT count(*) FROM late_results WHERE device = $1 AND known = $4) < $8
		ON CONFLICT DO NOTHING`,
		r.Device, r.Task, r.Token, isLate, string(r.Cause), nullText(r.Output), r.Error, maxLateResults)
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
	if err := s.recordEvent(ctx, Event{Kind: kind, Actor: r.Device, Task: r.Task, Device: r.Device, Token: r.Token, Detail: string(r.Cause)}); err != nil {
		return err
	}
	return s.recordDroppedOutput(ctx, r)
}

// recordDroppedOutput records an event if the output of the result was too large to keep.
func (s grantsIn) recordDroppedOutput(ctx context.Context, r Result) error {
	if !r.Dropped {
		return nil
	}
	if _, err := s.exec(ctx, `
		INSERT INTO events (at, kind, actor, pool, batch, task, device, token, detail)
		SELECT {now}, 'result.output_dropped', $2, pool, batch, id, $2, $3, 'too large' FROM tasks WHERE id = $1`,
		r.Task, r.Device, r.Token); err != nil {
		return fmt.Errorf("recording the dropped-output event: %w", err)
	}
	return nil
}
