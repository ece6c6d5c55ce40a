package store

import (
	"cmp"
	"context"
	"errors"
	"math"
	"strings"
)

// TaskFilter selects tasks; a zero field selects all.
type TaskFilter struct {
	Device string
	Batch  int64
	Pool   string
	State  TaskState
	Kind   string
	Error  string // the whole text; with * at its end: what it begins with
	After  int64  // ids above
	Until  int64  // ids up to; 0 = no bound
	Newest bool   // descending ids
	Limit  int    // default 100, at most 1000
}

// Within bounds the filter by a stretch of it.
func (f *TaskFilter) Within(stretch Stretch) {
	switch {
	case stretch.End == 0:
	case f.Newest:
		f.After = max(f.After, stretch.End-1)
	case f.Until == 0 || f.Until > stretch.End:
		f.Until = stretch.End
	}
}

// Beyond bounds the filter by the last id that was read; 0: nothing was.
func (f *TaskFilter) Beyond(last int64) {
	switch {
	case last == 0:
	case f.Newest:
		f.Until = cmp.Or(last-1, -1) // 0 would be no bound
	default:
		f.After = last
	}
}

// direction is the order of the ids.
func (f TaskFilter) direction() string {
	if f.Newest {
		return " DESC"
	}
	return ""
}

// ids are those of the tasks that a filter is held against, in their order, at most so
// many: of a device, of a batch or those that run, by the index of each. The limits keep
// Postgres from choosing another one, whatever it knows of the tables.
func (f TaskFilter) ids(q *query, most int) string {
	s := f.span(q, most)
	within := func(id string) string { return id + ` > ` + s.after + ` AND ` + id + ` < ` + s.before }
	switch {
	case f.State == Dispatched:
		return `SELECT task AS id FROM grants WHERE ` + f.running(q) + within("task") + ` ORDER BY task` + s.direction + ` LIMIT ` + s.limit
	case f.Device != "":
		// The sum keeps it from the primary key, which has the order already.
		return `SELECT id FROM tasks WHERE ` + f.ofDevice(q) + f.waiting() + within("id") + ` ORDER BY id + 0` + s.direction + ` LIMIT ` + s.limit
	}
	return f.inBatch(q, s)
}

func (f TaskFilter) span(q *query, most int) span {
	s := span{after: q.arg(f.After), before: "9223372036854775807", direction: f.direction(), limit: q.arg(most)}
	if f.Until != 0 {
		s.before = q.arg(f.Until + 1)
	}
	return s
}

// waiting leaves out those that run. Each is looked up: Postgres may join NOT EXISTS by
// reading the grants from the first on.
func (f TaskFilter) waiting() string {
	if f.State != Pending {
		return ""
	}
	return `(SELECT g.task FROM grants g WHERE g.task = tasks.id) IS NULL AND `
}

func (f TaskFilter) running(q *query) (conds string) {
	if f.Device != "" {
		conds += "device = " + q.arg(f.Device) + " AND "
	}
	if f.Pool != "" {
		conds += "pool = " + q.arg(f.Pool) + " AND "
	}
	if f.Batch != 0 {
		batch := q.arg(f.Batch)
		conds += "batch = " + batch + " AND pool = (SELECT pool FROM batches WHERE id = " + batch + ") AND "
	}
	return conds
}

func (f TaskFilter) ofDevice(q *query) string {
	conds := "device = " + q.arg(f.Device) + " AND "
	if f.State != "" {
		conds += "state = " + q.arg(f.State) + " AND "
	}
	if f.Batch != 0 {
		conds += "batch = " + q.arg(f.Batch) + " AND "
	}
	return conds
}

// inBatch merges the states: each stands in the index in the order of the ids. The state
// is compared behind the limit: with a bound for it Postgres reads a batch to its end for
// a state that few of its tasks are in.
func (f TaskFilter) inBatch(q *query, s span) string {
	states := []TaskState{f.State}
	if f.State == "" {
		states = keptStates()
	}
	return f.inStates(q, s, states)
}

func (f TaskFilter) inStates(q *query, s span, states []TaskState) string {
	batch := q.arg(f.Batch)
	parts := make([]string, len(states))
	for i, state := range states {
		name := string(state)
		bound, rest := `(batch, state, id) > (`+batch+`, '`+name+`', `+s.after+`) AND batch <= `+batch, `id < `+s.before
		if f.Newest {
			bound, rest = `(batch, state, id) < (`+batch+`, '`+name+`', `+s.before+`) AND batch >= `+batch, `id > `+s.after
		}
		parts[i] = `SELECT id FROM (
			SELECT batch, state, id FROM tasks WHERE ` + f.waiting() + bound + `
			ORDER BY batch` + s.direction + `, state` + s.direction + `, id` + s.direction + ` LIMIT ` + s.limit + `) AS ` + name + `
			WHERE batch = ` + batch + ` AND state = '` + name + `' AND ` + rest
	}
	return `SELECT id FROM (` + strings.Join(parts, " UNION ALL ") + `) AS states ORDER BY id` + s.direction + ` LIMIT ` + s.limit
}

// served says whether ids gives all that match and nothing else.
func (f TaskFilter) served() bool {
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

// where adds the conditions on tasks t, their batch b and their grant g.
func (f TaskFilter) where(q *query) {
	whereSet(q, "t.device = %s", f.Device)
	whereSet(q, "t.batch = %s", f.Batch)
	whereSet(q, "t.pool = %s", f.Pool)
	whereSet(q, "b.kind = %s", f.Kind)
	switch f.State {
	case Dispatched:
		q.conds = append(q.conds, "g.task IS NOT NULL")
	case Pending:
		q.conds = append(q.conds, "t.state = 'pending' AND g.task IS NULL")
	default:
		whereSet(q, "t.state = %s", f.State)
	}
	if start, isPrefix := strings.CutSuffix(f.Error, "*"); isPrefix {
		q.where("t.error <> '' AND substr(t.error, 1, length(CAST(%[1]s AS text))) = %[1]s", start)
		return
	}
	whereSet(q, "t.error = %s", f.Error)
}

// along says that a filter is held against the tasks along the primary key.
func (f TaskFilter) along() bool { return f.State != Dispatched && f.Device == "" && f.Batch == 0 }

// looked are those tasks t. Along the primary key their rows are read at once, and not
// looked up by their ids.
func (f TaskFilter) looked(q *query, most int) string {
	if f.along() {
		return `(SELECT * FROM tasks WHERE ` + f.span(q, most).of("", "") + `) AS t`
	}
	return `(` + f.ids(q, most) + `) AS w {task w}`
}

// order is that in which matching looks at tasks.
func (f TaskFilter) order() string {
	if f.along() {
		return " ORDER BY t.id" + f.direction()
	}
	return " ORDER BY w.id" + f.direction()
}

// matching selects from the tasks that match, and a condition on tasks t, their batch b
// and their grant g; empty: none.
func (f TaskFilter) matching(columns, cond string) *query {
	q := &query{}
	most := lookedAt
	if cond == "" && f.served() {
		most = clampLimit(f.Limit)
	}
	q.text = `SELECT ` + columns + ` FROM ` + f.looked(q, most) + ` {batch of t} {grant of t}`
	if cond != "" {
		q.conds = append(q.conds, cond)
	}
	f.where(q)
	return q
}

// Tasks returns the tasks that match, by id, among those of the TaskStretch: beyond, it
// may leave some out.
func (s tasks) Tasks(ctx context.Context, f TaskFilter) ([]Task, error) {
	text, args := f.matching(taskColumns, "").end(f.order(), f.Limit)
	return collect(ctx, s.planned(), taskDest, text, args...)
}

// TaskStretch is up to where one request holds tasks against a filter that no index
// serves; what is beyond is for the next one, after its end.
func (s tasks) TaskStretch(ctx context.Context, f TaskFilter) (Stretch, error) {
	if f.served() {
		return Stretch{}, nil
	}
	return s.stretch(ctx, f)
}

// stretch counts ids where that is all that it can go by, and begins with the first one
// that there is: Postgres may read far more rows than it returns when it is to count them.
func (s tasks) stretch(ctx context.Context, f TaskFilter) (Stretch, error) {
	if !f.along() {
		q := &query{}
		return s.stretchOf(ctx, q, f.ids(q, lookedAt), f.direction())
	}
	from, query := f.After, `
		SELECT first.id + $2, (SELECT max(id) FROM tasks) > first.id + $2
		FROM (SELECT id FROM tasks WHERE id > $1 ORDER BY id LIMIT 1) AS first`
	if f.Newest {
		from, query = cmp.Or(f.Until, math.MaxInt64), `
			SELECT CASE WHEN first.id > $2 THEN first.id - $2 ELSE 1 END, (SELECT min(id) FROM tasks) < first.id - $2
			FROM (SELECT id FROM tasks WHERE id <= $1 ORDER BY id DESC LIMIT 1) AS first`
	}
	stretch, err := one(ctx, s.planned(), func(to *Stretch) []any { return []any{&to.End, &to.More} }, query, from, lookedAt-1)
	if errors.Is(err, ErrNotFound) {
		return Stretch{}, nil
	}
	return stretch, err
}
