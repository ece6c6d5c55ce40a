package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// waitingEndRule says which waiting tasks t must be ended, and how.
type waitingEndRule struct {
	fromSQL string // FROM ... WHERE
	args    []any
	order   string // ORDER BY clause that an index serves; empty means no order
	reason  string // SQL expression on t: the reason as a text for people, stored as the error of the task and in its event
	recheck string // SQL condition on t, checked after the tasks are locked because the reason may no longer hold; empty means none
	state   TaskState
	actor   string
}

// isWaitingSQL is the condition that task t is pending and has no grant. The grant is looked up inside a CASE, so that Postgres cannot turn
// the lookup into a join over all tasks. Postgres expects a CASE to be true for most rows, so it reads the tasks along their index.
const isWaitingSQL = `t.state = 'pending' AND CASE WHEN (SELECT g.task FROM grants g WHERE g.task = t.id) IS NULL THEN TRUE ELSE FALSE END`

// findTasksSQL returns the query for the tasks of the rule. Its last argument is the maximum number of tasks.
func (e waitingEndRule) findTasksSQL() string {
	return `SELECT t.id, ` + e.reason + ` ` + e.fromSQL + ` AND ` + isWaitingSQL + e.order + fmt.Sprintf(` LIMIT $%d FOR UPDATE OF t SKIP LOCKED`, len(e.args)+1)
}

// reaperActor is the actor in the events of leases that ended and of tasks that expired.
const reaperActor = "reaper"

// newExpiryRule returns a rule that ends tasks as expired. The parameters are the fields of waitingEndRule. args are the arguments of fromSQL.
func newExpiryRule(fromSQL, orderSQL, reason, recheckSQL string, args ...any) waitingEndRule {
	return waitingEndRule{fromSQL, args, orderSQL, reason, recheckSQL, Expired, reaperActor}
}

// expiryRules returns the rules for the NotAfter of a batch and of a task, which have indexes. ExpireWaited handles MaxWait. The rules read
// the clock in a sub-select, because an expression that changes during the statement cannot be an index bound.
func expiryRules() []waitingEndRule {
	const missed = `CASE WHEN t.started IS TRUE THEN 'not finished by ' ELSE 'not started by ' END || `
	return []waitingEndRule{
		newExpiryRule(`FROM batches b JOIN tasks t ON t.batch = b.id WHERE b.not_after <= (SELECT {now})`, ` ORDER BY b.not_after`,
			missed+`'the not_after of its batch'`, `(SELECT b.not_after FROM batches b WHERE b.id = t.batch) <= {now}`),
		newExpiryRule(`FROM tasks t WHERE t.not_after <= (SELECT {now})`, ` ORDER BY t.not_after`,
			missed+`'its own not_after'`, `t.not_after <= {now}`),
	}
}

// maxWaitRule returns the rule that ends each task in taskIDs that is past the MaxWait of its batch.
func maxWaitRule(taskIDs []int64) waitingEndRule {
	return newExpiryRule(`FROM {ids} JOIN tasks t ON t.id = ids.id WHERE TRUE`, ``, `'waited longer than max_wait'`,
		`EXISTS (SELECT 1 FROM batches b WHERE b.id = t.batch AND `+withinMaxWait+` IS NOT TRUE)`, idsToJSONArray(taskIDs...))
}

// Expire ends at most limit tasks that are past their own NotAfter or the NotAfter of their batch, and returns their number.
func (s tasks) Expire(ctx context.Context, limit int) (expired int, err error) {
	for _, rule := range expiryRules() {
		n, err := s.endWaitingTasks(ctx, rule, limit-expired)
		if err != nil {
			return expired, err
		}
		if expired += n; expired == limit {
			break
		}
	}
	return expired, nil
}

// ExpiryPosition is a position in the search for tasks that waited too long. The search goes from batch to batch, and in a batch from task
// to task. The zero value is before all tasks.
type ExpiryPosition struct{ Batch, Task int64 }

// ExpireWaited ends tasks that waited longer than the MaxWait of their batch, and returns their number. It searches the tasks behind a position
// (after). next is the position for the next call. If next is zero, the search has reached the end. One call searches at most maxSearched
// batches with a MaxWait and at most maxSearched tasks of one batch. Tasks that were started or have a later not_before count as searched,
// because no index excludes them.
func (s tasks) ExpireWaited(ctx context.Context, after ExpiryPosition, maxSearched int) (expired int, next ExpiryPosition, err error) {
	type overdueBatch struct{ batch, nextBatch int64 } // batch is 0 if no batch is overdue; nextBatch is 0 at the end of the search
	found, err := queryOne(ctx, s.customPlanSession(), func(o *overdueBatch) []any { return []any{&o.batch, &o.nextBatch} }, overdueText, after.Batch, maxSearched)
	if err != nil {
		return 0, after, fmt.Errorf("finding batches that waited too long: %w", err)
	}
	if found.batch == 0 {
		return 0, ExpiryPosition{Batch: found.nextBatch}, nil
	}
	f := TaskFilter{Batch: found.batch, State: Pending}
	if found.batch == after.Batch {
		f.After = after.Task
	}
	q := &query{}
	bound, err := s.searchBoundAfter(ctx, q, f.candidateIDsSQL(q, maxSearched), "", maxSearched)
	if err != nil {
		return 0, after, fmt.Errorf("finding tasks that waited too long: %w", err)
	}
	if next = (ExpiryPosition{found.batch, bound.End}); !bound.More {
		next = ExpiryPosition{Batch: found.batch + 1}
	}
	f.Until = bound.End
	expired, err = s.expireTasksByMaxWait(ctx, f, maxSearched)
	return expired, next, err
}

// expireTasksByMaxWait ends the tasks of one batch, selected by filter, that waited longer than the MaxWait of the batch. It searches at most
// maxSearched tasks.
func (s tasks) expireTasksByMaxWait(ctx context.Context, filter TaskFilter, maxSearched int) (expired int, err error) {
	q := &query{}
	late, err := collect(ctx, s.customPlanSession(), singleColumn[int64], `SELECT t.id FROM (`+filter.candidateIDsSQL(q, maxSearched)+`) AS w {task w} {batch of t} WHERE `+withinMaxWait+` IS NOT TRUE`, q.args...)
	if err != nil || len(late) == 0 {
		return 0, err
	}
	return s.endWaitingTasks(ctx, maxWaitRule(late), maxSearched)
}

// overdueText searches the next $2 batches with a MaxWait, beginning with batch $1. It selects the first batch that is past its MaxWait and has
// open tasks, and the batch at which the next search starts. It looks up tasks batch by batch, because for an EXISTS Postgres may read all
// open tasks.
const overdueText = `
	SELECT coalesce((
			SELECT b.id FROM (SELECT id, wait_until FROM batches WHERE wait_until IS NOT NULL AND id >= $1 ORDER BY id LIMIT $2) AS b
			WHERE CASE WHEN b.wait_until <= {now} THEN (SELECT t.id FROM tasks t WHERE t.batch = b.id AND t.state = 'pending' ORDER BY t.batch, t.state, t.id LIMIT 1) END IS NOT NULL
			ORDER BY b.id LIMIT 1), 0),
		coalesce((SELECT id FROM batches WHERE wait_until IS NOT NULL AND id >= $1 ORDER BY id LIMIT 1 OFFSET $2), 0)`

// endWaitingTasks ends at most limit waiting tasks that match the rule, in one transaction, and returns their number.
func (s tasks) endWaitingTasks(ctx context.Context, rule waitingEndRule, limit int) (ended int, err error) {
	defer wrapError(&err, "ending tasks that are %s", rule.state)
	return inTx(ctx, s.connection, func(tx session) (int, error) { return tx.endWaitingTasks(ctx, rule, limit) })
}

func (s session) endWaitingTasks(ctx context.Context, rule waitingEndRule, limit int) (ended int, err error) {
	ends, err := collect(ctx, s, func(e *taskEnd) []any { return []any{&e.Task, &e.Reason} }, rule.findTasksSQL(), append(rule.args, limit)...)
	if err != nil || len(ends) == 0 {
		return 0, err
	}
	endedIDs, err := s.endLockedTasks(ctx, rule, ends)
	return len(endedIDs), err
}

// taskEnd is a task that ends without a grant.
type taskEnd struct {
	Task   int64  `json:"task"`
	Reason string `json:"reason"` // stored as the error of the task and as the detail of its event
}

// endLockedTasks ends the tasks in ends that still satisfy rule.recheck and are not granted, and returns their ids. The caller must have locked
// the tasks.
func (s session) endLockedTasks(ctx context.Context, rule waitingEndRule, ends []taskEnd) (endedIDs []int64, err error) {
	// A claim and a change of the batch do not write the row of the task. So only a statement after the lock sees a claim or change that was
	// committed just before.
	endedIDs, err = collect(ctx, s, singleColumn[int64], `
		UPDATE tasks AS t SET state = $2, finished_at = {now}, retry_at = NULL, error = ends.reason
		FROM {ends} WHERE t.id = ends.task AND `+isWaitingSQL+` AND `+cmp.Or(rule.recheck, `TRUE`)+` RETURNING id`, rowsToJSONArray(ends), string(rule.state))
	if err != nil || len(endedIDs) == 0 {
		return nil, err
	}
	ends = slices.DeleteFunc(slices.Clone(ends), func(e taskEnd) bool { return !slices.Contains(endedIDs, e.Task) })
	_, err = s.exec(ctx, `
		INSERT INTO events (at, kind, actor, actor_kind, pool, batch, task, device, detail)
		SELECT {now}, $2, $3, $4, t.pool, t.batch, t.id, t.device, ends.reason FROM {ends} JOIN tasks t ON t.id = ends.task`,
		rowsToJSONArray(ends), "task."+string(rule.state), rule.actor, string(kindOfActor(rule.actor)))
	return endedIDs, err
}

// Suppression is a task that a policy refused, and the reason.
type Suppression struct {
	Task   int64
	Reason string
}

// Suppress ends each waiting task in suppressions, with the reason as its error. endedByEntry[i] is true if entry i ended its task. If
// there are several entries or calls for one task, only one of them gets true.
func (s tasks) Suppress(ctx context.Context, suppressions []Suppression) (endedByEntry []bool, err error) {
	if len(suppressions) == 0 {
		return nil, nil
	}
	var ended map[int64]bool
	err = s.write(ctx, func(tx session) (err error) {
		ended, err = tx.suppressTasks(ctx, suppressions)
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

// suppressTasks ends each waiting task in suppressions, and returns the set of the ids of the ended tasks. It locks the tasks in the order of
// ids, as all code does, so that deadlocks are avoided.
func (s session) suppressTasks(ctx context.Context, suppressions []Suppression) (endedTasks map[int64]bool, err error) {
	ends := make([]taskEnd, 0, len(suppressions))
	named := make(map[int64]bool)
	for _, one := range suppressions {
		if !named[one.Task] {
			ends = append(ends, taskEnd(one))
		}
		named[one.Task] = true
	}
	if _, err := s.exec(ctx, `SELECT t.id FROM {ends} JOIN tasks t ON t.id = ends.task ORDER BY t.id FOR UPDATE OF t`, rowsToJSONArray(ends)); err != nil {
		return nil, fmt.Errorf("locking tasks: %w", err)
	}
	endedIDs, err := s.endLockedTasks(ctx, waitingEndRule{state: Suppressed, actor: systemActor}, ends)
	ended := make(map[int64]bool)
	for _, task := range endedIDs {
		ended[task] = true
	}
	return ended, err
}
