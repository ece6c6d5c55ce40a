package store

import (
	"context"
	"encoding/json"
	"time"
)

// subject is a task whose grant may end, with its batch's rules.
type subject struct {
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

const subjectColumns = `t.id, t.device, b.kind, t.state, t.attempts, t.returned, b.max_attempts, b.retry_on, b.retry_backoff_ms, b.on_lost`

func subjectDest(s *subject) []any {
	return []any{
		&s.id, &s.device, &s.kind, &s.state, &s.attempts, &s.returned, &s.maxAttempts, words{&s.retryOn}, millis{&s.backoff}, &s.onLost,
	}
}

// heldColumns are those of grants g alone. The kind and payload are the
// task's, and stay behind.
const heldColumns = `g.task, g.batch, g.pool, g.slot, g.device, g.token, g.lease, g.attempt, '', NULL,
	g.granted_at, g.lease_until, g.max_until, g.lease_ms, g.redelivered, g.cancel_why, {now}`

// ending is a grant that ends, and what becomes of its task.
type ending struct {
	n       int // of the result that ends it
	task    subject
	grant   Grant
	cause   EndCause
	output  json.RawMessage
	dropped bool
	error   string
	event   string
	actor   string
	settled Settlement
}

// endingDest is for the number of a result, subjectColumns and heldColumns.
func endingDest(e *ending) []any {
	return append(append([]any{&e.n}, subjectDest(&e.task)...), grantDest(&e.grant)...)
}

// report is the end of a grant by a result.
func (e *ending) report(r Result, settle Settle) {
	e.cause, e.output, e.dropped, e.error, e.actor = r.Cause, r.Output, r.Dropped, r.Error, r.Device
	e.settle(settle, r.RetryAfter)
	e.event = "task." + string(e.settled.State)
	if e.settled.State == Pending {
		e.event = "task." + string(r.Cause) // failed or returned, and to be tried again
	}
}

func (e *ending) settle(settle Settle, retryAfter time.Duration) {
	e.grant.Kind = e.task.kind
	e.settled = settle(Ending{
		Cause: e.cause, CancelWhy: e.grant.CancelWhy, Attempts: e.task.attempts, Returned: e.task.returned,
		MaxAttempts: e.task.maxAttempts, RetryOn: e.task.retryOn, OnLost: e.task.onLost,
		RetryBackoff: e.task.backoff, RetryAfter: retryAfter,
	})
}

type endingRow struct {
	Task     int64   `json:"task"`
	Token    int64   `json:"token"`
	Cause    string  `json:"cause"`
	Output   *string `json:"output"` // JSON as text: as a member it would be written anew
	Dropped  int     `json:"dropped"`
	Error    string  `json:"error"`
	State    string  `json:"state"`
	Counted  int     `json:"counted"`
	Returned int     `json:"returned"`
	DelayMS  int64   `json:"delay_ms"`
	Event    string  `json:"event"`
	Actor    string  `json:"actor"`
	Detail   string  `json:"detail"`
}

func (e *ending) row() endingRow {
	row := endingRow{
		Task: e.grant.Task, Token: e.grant.Token, Cause: string(e.cause), Error: e.error, State: string(e.settled.State),
		DelayMS: e.settled.Delay.Milliseconds(), Event: e.event, Actor: e.actor, Detail: string(e.settled.State),
	}
	if e.output != nil {
		output := string(e.output)
		row.Output = &output
	}
	if e.dropped {
		row.Dropped = 1
	}
	if e.settled.Counted {
		row.Counted = 1
	}
	if e.settled.Returned {
		row.Returned = 1
	}
	return row
}

// end writes settled endings: the attempt, the task, the event, and the grant
// away. The rows of the tasks and grants must be locked.
func (s grantsIn) end(ctx context.Context, endings []ending) error {
	rows := make([]endingRow, len(endings))
	for i := range endings {
		rows[i] = endings[i].row()
	}
	return s.each(ctx, input(rows), len(rows), endingSteps())
}

// endingSteps: the grants, which the attempts are made of, go last.
func endingSteps() []step {
	return []step{
		{"recording attempts", `
			INSERT INTO attempts (token, task, number, device, pool, slot, lease, granted_at, ended_at, ended_by, output, output_dropped, error)
			SELECT g.token, g.task, g.attempt, g.device, g.pool, g.slot, g.lease, g.granted_at, {now}, endings.cause,
				endings.output{json}, endings.dropped > 0, endings.error
			FROM {endings} JOIN grants g ON g.task = endings.task AND g.token = endings.token`},
		{"settling tasks", `
			UPDATE tasks AS t SET state = endings.state, attempts = t.attempts + endings.counted, returned = t.returned + endings.returned,
				retry_at = CASE WHEN endings.delay_ms > 0 THEN {now} + endings.delay_ms * {ms} END,
				finished_at = CASE WHEN endings.state <> 'pending' THEN {now} END,
				output = CASE WHEN endings.state <> 'pending' THEN endings.output{json} END,
				output_dropped = endings.state <> 'pending' AND endings.dropped > 0,
				error = CASE WHEN endings.state <> 'pending' THEN endings.error ELSE '' END
			FROM {endings} WHERE t.id = endings.task`},
		{"recording events", `
			INSERT INTO events (at, kind, actor, pool, batch, task, device, token, detail)
			SELECT {now}, endings.event, endings.actor, t.pool, t.batch, t.id, t.device, endings.token, endings.detail
			FROM {endings} JOIN tasks t ON t.id = endings.task`},
		{"ending grants", `
			DELETE FROM grants WHERE task IN (SELECT task FROM {endings})`},
	}
}
