package store

import (
	"cmp"
	"context"
	"errors"
	"math"
	"strings"
	"time"
)

// TaskFilter selects tasks. A field with its zero value does not restrict the selection.
type TaskFilter struct {
	Device string
	Batch  int64
	Pool   string
	State  TaskState
	Kind   string
	Error  string // the whole text of the error, or a prefix of it followed by *
	After  int64  // only tasks with id > After
	Until  int64  // only tasks with id <= Until; 0 means no bound
	Newest bool   // descending order of ids
	Limit  int    // default 100, at most 1000

	Retrying bool // only pending tasks with counted attempts: they will be tried again

	retriable bool // only candidates in retriableStates; it only affects the tasks of a batch

	EndedSince  time.Time // only tasks that ended at that time or later; zero means no bound
	EndedBefore time.Time // only tasks that ended before that time; zero means no bound
}

// LimitTo restricts the filter to the ids up to bound.End, in the order of the filter. An End of 0 changes nothing.
func (f *TaskFilter) LimitTo(bound SearchBound) {
	switch {
	case bound.End == 0:
	case f.Newest:
		f.After = max(f.After, bound.End-1)
	case f.Until == 0 || f.Until > bound.End:
		f.Until = bound.End
	}
}

// ContinueAfter restricts the filter to the tasks that follow the task lastRead in the order of the filter. If lastRead is 0, nothing
// changes.
func (f *TaskFilter) ContinueAfter(lastRead int64) {
	switch {
	case lastRead == 0:
	case f.Newest:
		f.Until = cmp.Or(lastRead-1, -1) // -1 selects no tasks, but 0 would mean no bound
	default:
		f.After = lastRead
	}
}

func (f TaskFilter) directionSQL() string {
	if f.Newest {
		return " DESC"
	}
	return ""
}

// candidateIDsSQL returns the query for the ids of at most maxRows candidates in the order of the filter, and adds its arguments to q.
// Candidates are the tasks of a device, the tasks of a batch, or the running tasks. The limit makes Postgres choose the right index in each
// case, whatever the statistics of Postgres are.
func (f TaskFilter) candidateIDsSQL(q *query, maxRows int) string {
	s := f.idRange(q, maxRows)
	within := func(id string) string { return id + ` > ` + s.after + ` AND ` + id + ` < ` + s.before }
	switch {
	case f.State == Dispatched:
		return `SELECT task AS id FROM grants WHERE ` + f.runningConditionsSQL(q) + within("task") + ` ORDER BY task` + s.direction + ` LIMIT ` + s.limit
	case f.Device != "":
		// The order is by id + 0, because for an order by id Postgres would read the tasks of all devices along the primary key.
		return `SELECT id FROM tasks WHERE ` + f.deviceConditionsSQL(q) + f.excludeRunningSQL() + within("id") + ` ORDER BY id + 0` + s.direction + ` LIMIT ` + s.limit
	}
	return f.batchTaskIDsSQL(q, s)
}

// idRange returns the range of ids of the filter, at most maxRows rows, and adds its arguments to q.
func (f TaskFilter) idRange(q *query, maxRows int) idRange {
	s := idRange{after: q.addArg(f.After), before: "9223372036854775807", direction: f.directionSQL(), limit: q.addArg(maxRows)}
	if f.Until != 0 {
		s.before = q.addArg(f.Until + 1)
	}
	return s
}

// excludeRunningSQL returns a condition that excludes running tasks from the state Pending, because the rows of running tasks are also
// pending. The condition looks up each grant separately, because Postgres may run a NOT EXISTS as a join that reads all grants.
func (f TaskFilter) excludeRunningSQL() string {
	if f.State != Pending {
		return ""
	}
	return `(SELECT g.task FROM grants g WHERE g.task = tasks.id) IS NULL AND `
}

// runningConditionsSQL returns the conditions for running tasks, and adds their arguments to q.
func (f TaskFilter) runningConditionsSQL(q *query) (conditionsSQL string) {
	if f.Device != "" {
		conditionsSQL += "device = " + q.addArg(f.Device) + " AND "
	}
	if f.Pool != "" {
		conditionsSQL += "pool = " + q.addArg(f.Pool) + " AND "
	}
	if f.Batch != 0 {
		batch := q.addArg(f.Batch)
		conditionsSQL += "batch = " + batch + " AND pool = (SELECT pool FROM batches WHERE id = " + batch + ") AND "
	}
	return conditionsSQL
}

// deviceConditionsSQL returns the conditions for the tasks of the device, and adds their arguments to q.
func (f TaskFilter) deviceConditionsSQL(q *query) (conditionsSQL string) {
	conditionsSQL = "device = " + q.addArg(f.Device) + " AND "
	if f.State != "" {
		conditionsSQL += "state = " + q.addArg(f.State) + " AND "
	}
	if f.Batch != 0 {
		conditionsSQL += "batch = " + q.addArg(f.Batch) + " AND "
	}
	return conditionsSQL
}

// batchTaskIDsSQL returns the query for the ids of a batch's tasks in span, a range of ids, and adds its arguments to q. The index sorts the
// tasks of each state separately, and the query merges the states. The condition on the state is outside of the query with the LIMIT. If it were
// inside and few tasks matched, Postgres would read the batch to its end.
func (f TaskFilter) batchTaskIDsSQL(q *query, span idRange) string {
	states := []TaskState{f.State}
	switch {
	case f.State != "":
	case f.retriable:
		states = retriableStates() // the search does not read the many pending and succeeded tasks
	default:
		states = storedStates()
	}
	return f.stateTaskIDsSQL(q, span, states)
}

// stateTaskIDsSQL returns the query for the ids of a batch's tasks in these states and in the range span.
func (f TaskFilter) stateTaskIDsSQL(q *query, span idRange, states []TaskState) string {
	batch := q.addArg(f.Batch)
	parts := make([]string, len(states))
	for i, state := range states {
		name := string(state)
		bound, rest := `(batch, state, id) > (`+batch+`, '`+name+`', `+span.after+`) AND batch <= `+batch, `id < `+span.before
		if f.Newest {
			bound, rest = `(batch, state, id) < (`+batch+`, '`+name+`', `+span.before+`) AND batch >= `+batch, `id > `+span.after
		}
		parts[i] = `SELECT id FROM (
			SELECT batch, state, id FROM tasks WHERE ` + f.excludeRunningSQL() + bound + `
			ORDER BY batch` + span.direction + `, state` + span.direction + `, id` + span.direction + ` LIMIT ` + span.limit + `) AS ` + name + `
			WHERE batch = ` + batch + ` AND state = '` + name + `' AND ` + rest
	}
	return `SELECT id FROM (` + strings.Join(parts, " UNION ALL ") + `) AS states ORDER BY id` + span.direction + ` LIMIT ` + span.limit
}

// isIndexed reports whether candidatesSQL selects exactly the tasks that match.
func (f TaskFilter) isIndexed() bool {
	f.After, f.Until, f.Newest, f.Limit = 0, 0, false, 0
	switch {
	case f.State == Dispatched:
		f.State, f.Device, f.Batch, f.Pool = "", "", 0, ""
	case f.Device != "":
		f.Device, f.State, f.Batch = "", "", 0
	case f.Batch != 0:
		f.Batch, f.State = 0, ""
	}
	return f == TaskFilter{}
}

func (f TaskFilter) addConditions(q *query) {
	whereIfSet(q, "t.device = %s", f.Device)
	whereIfSet(q, "t.batch = %s", f.Batch)
	whereIfSet(q, "t.pool = %s", f.Pool)
	whereIfSet(q, "b.kind = %s", f.Kind)
	switch f.State {
	case Dispatched:
		q.conds = append(q.conds, "g.task IS NOT NULL")
	case Pending:
		q.conds = append(q.conds, "t.state = 'pending' AND g.task IS NULL")
	default:
		whereIfSet(q, "t.state = %s", f.State)
	}
	if f.Retrying {
		q.conds = append(q.conds, "t.attempts > 0 AND t.state = 'pending' AND g.task IS NULL")
	}
	q.whereTimeBetween("t.finished_at", f.EndedSince, f.EndedBefore)
	if start, isPrefix := strings.CutSuffix(f.Error, "*"); isPrefix {
		q.where("t.error <> '' AND substr(t.error, 1, length(CAST(%[1]s AS text))) = %[1]s", start)
		return
	}
	whereIfSet(q, "t.error = %s", f.Error)
}

// usesPrimaryKey reports whether candidatesSQL reads the tasks along the primary key.
func (f TaskFilter) usesPrimaryKey() bool {
	return f.State != Dispatched && f.Device == "" && f.Batch == 0
}

// candidatesSQL returns the FROM clause for at most maxRows candidate tasks t, and adds its arguments to q. Along the primary key, it reads
// the rows without a second lookup by id.
func (f TaskFilter) candidatesSQL(q *query, maxRows int) string {
	if f.usesPrimaryKey() {
		return `(SELECT * FROM tasks WHERE ` + f.idRange(q, maxRows).whereAndOrderSQL("", "") + `) AS t`
	}
	return `(` + f.candidateIDsSQL(q, maxRows) + `) AS w {task w}`
}

func (f TaskFilter) orderSQL() string {
	if f.usesPrimaryKey() {
		return " ORDER BY t.id" + f.directionSQL()
	}
	return " ORDER BY w.id" + f.directionSQL()
}

// matchingQuery returns the query for columns of the tasks that match the filter and condSQL. condSQL is an SQL condition on task t, batch b and
// grant g, or empty.
func (f TaskFilter) matchingQuery(columns, condSQL string) *query {
	q := &query{}
	maxRows := searchLimit
	if condSQL == "" && f.isIndexed() {
		maxRows = clampLimit(f.Limit)
	}
	q.text = `SELECT ` + columns + ` FROM ` + f.candidatesSQL(q, maxRows) + ` {batch of t} {grant of t}`
	if condSQL != "" {
		q.conds = append(q.conds, condSQL)
	}
	f.addConditions(q)
	return q
}

// Tasks returns the tasks that match filter, in the order of ids. The list is complete up to the TaskSearchBound.
func (s tasks) Tasks(ctx context.Context, filter TaskFilter) ([]Task, error) {
	text, args := filter.matchingQuery(taskColumns, "").build(filter.orderSQL(), filter.Limit)
	list, err := collect(ctx, s.customPlanSession(), taskScanDest, text, args...)
	if err != nil {
		return nil, err
	}
	return list, s.fillLastErrors(ctx, list)
}

// fillLastErrors sets LastError of the tasks in list that will be tried again.
func (s tasks) fillLastErrors(ctx context.Context, list []Task) error {
	var retrying []int64
	for _, t := range list {
		if t.State == Pending && t.Attempts > 0 {
			retrying = append(retrying, t.ID)
		}
	}
	last, err := s.lastAttempts(ctx, retrying)
	for i := range list {
		if attempt := last[list[i].ID]; attempt != nil {
			list[i].LastError = attempt.Error
		}
	}
	return err
}

// TaskSearchBound returns the id at which one request ends its search for tasks. There is no bound if an index serves filter.
func (s tasks) TaskSearchBound(ctx context.Context, filter TaskFilter) (SearchBound, error) {
	if filter.isIndexed() {
		return SearchBound{}, nil
	}
	return s.taskSearchBound(ctx, filter)
}

// taskSearchBound does the work of TaskSearchBound. If the search uses the primary key, the bound is at a constant distance from the first
// id. If the bound were found by counting rows, Postgres might read far more rows than it returns.
func (s tasks) taskSearchBound(ctx context.Context, filter TaskFilter) (SearchBound, error) {
	if !filter.usesPrimaryKey() {
		q := &query{}
		return s.searchBound(ctx, q, filter.candidateIDsSQL(q, searchLimit), filter.directionSQL())
	}
	from, query := filter.After, `
		SELECT first.id + $2, (SELECT max(id) FROM tasks) > first.id + $2
		FROM (SELECT id FROM tasks WHERE id > $1 ORDER BY id LIMIT 1) AS first`
	if filter.Newest {
		from, query = cmp.Or(filter.Until, math.MaxInt64), `
			SELECT CASE WHEN first.id > $2 THEN first.id - $2 ELSE 1 END, (SELECT min(id) FROM tasks) < first.id - $2
			FROM (SELECT id FROM tasks WHERE id <= $1 ORDER BY id DESC LIMIT 1) AS first`
	}
	bound, err := queryOne(ctx, s.customPlanSession(), func(to *SearchBound) []any { return []any{&to.End, &to.More} }, query, from, searchLimit-1)
	if errors.Is(err, ErrNotFound) {
		return SearchBound{}, nil
	}
	return bound, err
}
