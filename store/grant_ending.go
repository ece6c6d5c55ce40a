package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// endingTask is a task whose grant may end, with the settings of its batch that decide about a retry.
type endingTask struct {
	id          int64
	device      string
	kind        string
	state       TaskState
	attempts    int
	returned    int
	maxAttempts int
	retryOn     []string
	backoff     time.Duration
	onLost      string
}

const endingTaskColumns = `t.id, t.device, b.kind, t.state, t.attempts, t.returned, b.max_attempts, b.retry_on, b.retry_backoff_ms, b.on_lost`

func endingTaskScanDest(task *endingTask) (scanDest []any) {
	return []any{
		&task.id, &task.device, &task.kind, &task.state, &task.attempts, &task.returned, &task.maxAttempts,
		commaList{&task.retryOn},
		&task.backoff, &task.onLost,
	}
}

// grantOnlyColumns are grantColumns without the join with task and batch: kind is empty and payload is NULL.
const grantOnlyColumns = `g.task, g.batch, g.pool, g.slot, g.device, g.token, g.lease, g.attempt, '', NULL,
	g.granted_at, g.lease_until, g.max_until, g.lease_ms, ` + longestLease + `, g.redelivered, g.cancel_why, {now}`

// grantEnding is a grant that ends, and the resulting state of its task.
type grantEnding struct {
	n          int  // index of the result that ends the grant
	isOnlyTask bool // the device has no other open task, and is not blocked
	task       endingTask
	grant      Grant
	cause      EndCause
	output     json.RawMessage
	dropped    bool
	error      string
	event      string
	actor      string // empty means the device of the grant
	settlement NextTaskState
}

// endingScanDest returns pointers to the fields of ending for these columns: the index of a result, isOnlyTask, endingTaskColumns and
// grantOnlyColumns.
func endingScanDest(ending *grantEnding) (scanDest []any) {
	return append(append([]any{&ending.n, &ending.isOnlyTask}, endingTaskScanDest(&ending.task)...), grantScanDest(&ending.grant)...)
}

// endsLastTaskOfDevice reports whether the device has no open task after this ending, and is not blocked.
func (e *grantEnding) endsLastTaskOfDevice() bool {
	return e.isOnlyTask && e.settlement.State != Pending
}

// applyResult sets the fields of the ending for result. decideState decides the state of the task.
func (e *grantEnding) applyResult(result Result, decideState DecideTaskState) {
	e.cause, e.output, e.dropped, e.error = result.Cause, result.Output, result.Dropped, result.Error
	if e.cause == ByFailure && e.grant.CancelWhy == whyPaused {
		e.cause = ByReturn // the device was asked to stop, and its task must not count as a failed attempt
	}
	e.setTaskState(decideState, result.RetryAfter)
	e.event = "task." + string(e.settlement.State)
	if e.settlement.State == Pending {
		e.event = "task." + string(e.cause) // the attempt failed or was returned, and the task is pending again
	}
}

// setTaskState stores the state of the task, which the function decideState decides. requestedDelay is the delay before the next attempt that
// the device requested, or 0.
func (e *grantEnding) setTaskState(decideState DecideTaskState, requestedDelay time.Duration) {
	e.grant.Kind = e.task.kind
	e.settlement = decideState(EndedGrantFacts{
		Cause: e.cause, CancelWhy: e.grant.CancelWhy, Attempts: e.task.attempts, Returned: e.task.returned,
		MaxAttempts: e.task.maxAttempts, RetryOn: e.task.retryOn, OnLost: e.task.onLost,
		RetryBackoff: e.task.backoff, RetryAfter: requestedDelay,
	})
}

// endingRow is a grantEnding as a statement reads it. Its JSON omits members that have their default value.
type endingRow struct {
	Task      int64   `json:"task"`
	Token     int64   `json:"token"`
	Cause     string  `json:"cause"`
	Output    *string `json:"output,omitempty"` // JSON as text, because a JSON member would be reformatted
	Dropped   int     `json:"dropped,omitempty"`
	Error     string  `json:"error,omitempty"`
	State     string  `json:"state"`
	Counted   int     `json:"counted,omitempty"`
	Returned  int     `json:"returned,omitempty"`
	DelayMS   int64   `json:"delay_ms,omitempty"`
	Event     string  `json:"event"`
	Actor     string  `json:"actor,omitempty"`
	ActorKind string  `json:"actor_kind,omitempty"`
}

func (e *grantEnding) toRow() endingRow {
	row := endingRow{
		Task: e.grant.Task, Token: e.grant.Token, Cause: string(e.cause), Error: e.error, State: string(e.settlement.State),
		DelayMS: e.settlement.Delay.Milliseconds(), Event: e.event, Actor: e.actor,
	}
	if e.actor != "" {
		row.ActorKind = string(kindOfActor(e.actor))
	}
	if e.output != nil {
		output := string(e.output)
		row.Output = &output
	}
	if e.dropped {
		row.Dropped = 1
	}
	if e.settlement.Counted {
		row.Counted = 1
	}
	if e.settlement.Returned {
		row.Returned = 1
	}
	return row
}

// endedColumns are the columns that the placeholder {ended} of a statement (see dialect) stands for: grants that end, joined with their
// endings.
const endedColumns = `g.batch, g.pool, g.slot, g.device, g.lease, g.attempt, g.granted_at, endings.*`

// The statements that end grants, except the deletion of the grants. They update the tasks, insert the attempts and insert the events.
const (
	updateEndedTasks = `
		UPDATE tasks AS t SET state = endings.state,
			attempts = t.attempts + coalesce(endings.counted, 0), returned = t.returned + coalesce(endings.returned, 0), started = true,
			retry_at = CASE WHEN endings.delay_ms > 0 THEN {now} + endings.delay_ms * {ms} END,
			finished_at = CASE WHEN endings.state <> 'pending' THEN {now} END,
			output = CASE WHEN endings.state <> 'pending' THEN endings.output::json END,
			output_dropped = endings.state <> 'pending' AND endings.dropped IS NOT NULL,
			error = CASE WHEN endings.state <> 'pending' THEN coalesce(endings.error, '') ELSE '' END
		FROM {endings} WHERE t.id = endings.task`
	insertAttempts = `
		INSERT INTO attempts (token, task, number, device, pool, slot, lease, granted_at, ended_at, ended_by, output, output_dropped, error)
		SELECT token, task, attempt, device, pool, slot, lease, granted_at, {now}, cause, output::json, dropped IS NOT NULL, coalesce(error, '') FROM {ended}`
	insertEndEvents = `
		INSERT INTO events (at, kind, actor, actor_kind, pool, batch, task, device, token, detail)
		SELECT {now}, event, coalesce(actor, device), coalesce(actor_kind, 'device'), pool, batch, task, device, token,
			CASE WHEN coalesce(error, '') = '' THEN state ELSE state || ': ' || substr(error, 1, 200) END FROM {ended}`
)

// endGrants updates the tasks, inserts attempts and events, and deletes the grants. Tasks and grants must be locked.
func (s session) endGrants(ctx context.Context, endings []grantEnding) error {
	rows := make([]endingRow, len(endings))
	for i := range endings {
		rows[i] = endings[i].toRow()
	}
	settled, ended, err := s.writeEndings(ctx, rowsToJSONArray(rows))
	if err != nil {
		return err
	}
	if n := int64(len(rows)); settled != n || ended != n {
		return fmt.Errorf("%d tasks and %d grants were ended, want %d of each", settled, ended, n)
	}
	return nil
}

// writeEndings runs the statements of endGrants for endingsJSON, a JSON list.
func (s session) writeEndings(ctx context.Context, endingsJSON string) (updatedTasks, deletedGrants int64, err error) {
	if s.canChainWrites {
		err = s.scanRow(ctx, []any{&updatedTasks, &deletedGrants}, withInputReadOnceSQL("endings", `
			ended AS (DELETE FROM grants AS g USING {endings} WHERE g.task = endings.task AND g.token = endings.token RETURNING `+endedColumns+`),
			settled AS (`+updateEndedTasks+` RETURNING 1), kept AS (`+insertAttempts+`), told AS (`+insertEndEvents+`)
			SELECT (SELECT count(*) FROM settled), (SELECT count(*) FROM ended)`), endingsJSON)
		return updatedTasks, deletedGrants, err
	}
	// The grants are deleted last, because the other statements copy values from them.
	for _, step := range []struct {
		query string
		rows  *int64
	}{{updateEndedTasks, &updatedTasks}, {insertAttempts, &deletedGrants}, {insertEndEvents, &deletedGrants}, {`DELETE FROM grants WHERE task IN (SELECT task FROM {ended})`, &deletedGrants}} {
		if *step.rows, err = s.exec(ctx, step.query, endingsJSON); err != nil {
			return 0, 0, err
		}
	}
	return updatedTasks, deletedGrants, nil
}
