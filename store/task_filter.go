package store

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"
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
	Limit  int    // default 100, at most 1000
}

// fewBatches of a kind are named to the database one by one.
const fewBatches = 100

// matching adds the conditions of the filter. A kind is its batches': the few of
// a rare one are named, so that the plan is made for how many tasks these have,
// and not for how many a batch has on average. One that is created meanwhile is
// not found yet.
func (s tasks) matching(ctx context.Context, q *query, f TaskFilter) error {
	f.where(q)
	if f.Kind == "" || f.Batch != 0 {
		return nil
	}
	batches, err := collect(ctx, s.planned(), only[string], `
		SELECT CAST(id AS text) FROM batches WHERE kind = $1 ORDER BY id LIMIT $2`, f.Kind, fewBatches+1)
	if err != nil {
		return fmt.Errorf("looking for batches of a kind: %w", err)
	}
	switch {
	case len(batches) == 0:
		q.conds = append(q.conds, "1 = 0")
	case len(batches) <= fewBatches:
		q.conds = append(q.conds, "t.batch IN ("+strings.Join(batches, ", ")+")")
	}
	return nil
}

// errorIndexed is how much of an error its index holds, in characters.
const errorIndexed = 200

// where adds the conditions on tasks t, their batch b and their grant g.
func (f TaskFilter) where(q *query) {
	q.where("t.id > %s", f.After)
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
	f.whereError(q)
}

func (f TaskFilter) whereError(q *query) {
	const indexed = "substr(t.error, 1, 200) {bytes}" // errorIndexed
	if f.Error == "" {
		return
	}
	q.conds = append(q.conds, "t.error <> ''")
	if start, isPrefix := strings.CutSuffix(f.Error, "*"); isPrefix {
		q.where(indexed+" >= %s", cut(start, errorIndexed))
		q.where(indexed+" <= %s", cut(start, errorIndexed)+string(utf8.MaxRune))
		return
	}
	q.where(indexed+" = %s", cut(f.Error, errorIndexed))
	q.where("t.error = %s", f.Error)
}

func cut(text string, runes int) string {
	for i := range text {
		if runes == 0 {
			return text[:i]
		}
		runes--
	}
	return text
}

// Tasks returns the tasks that match, by id.
func (s tasks) Tasks(ctx context.Context, f TaskFilter) ([]Task, error) {
	q := query{text: `SELECT ` + taskColumns + ` FROM ` + taskTables}
	if err := s.matching(ctx, &q, f); err != nil {
		return nil, err
	}
	text, args := q.end(" ORDER BY t.id", f.Limit)
	return collect(ctx, s.planned(), taskDest, text, args...)
}
