package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// TaskResult is the result of a task that ended.
type TaskResult struct {
	Task    int64
	Device  string
	State   TaskState
	Ended   *time.Time
	Granted *time.Time // start of its last attempt; nil means that it had none
	Freed   *time.Time // end of its last attempt; nil means that it had none
	Output  json.RawMessage
	Dropped bool // an output was sent, but was too large to keep
	Error   string
}

// ResultFilter selects results of one batch.
type ResultFilter struct {
	Batch int64
	State TaskState // empty means all states of ended tasks
	Since time.Time // only tasks that ended at that time or later; zero means no bound
	Until time.Time // only tasks that ended before that time; zero means no bound
	After int64     // only tasks with id > After
	Last  int64     // only tasks with id <= Last; 0 means no bound
	Limit int       // default 100, at most 1000
}

// timed reports whether the filter has a time, which no index serves.
func (f ResultFilter) timed() bool { return !f.Since.IsZero() || !f.Until.IsZero() }

// where adds the times to a query of tasks t.
func (f ResultFilter) where(q *query) {
	if !f.Since.IsZero() {
		q.where("t.finished_at >= {epoch} + %s * {ms}", f.Since.UnixMilli())
	}
	if !f.Until.IsZero() {
		q.where("t.finished_at < {epoch} + %s * {ms}", f.Until.UnixMilli())
	}
}

// endedStates returns the states of tasks that have results.
func endedStates() []TaskState { return keptStates()[1:] }

// ids returns the query for the ids of the tasks, in ascending order, at most `most` of them.
func (f ResultFilter) ids(q *query, until int64, most int) string {
	states := []TaskState{f.State}
	if f.State == "" {
		states = endedStates()
	}
	tasks := TaskFilter{Batch: f.Batch, After: f.After, Until: until}
	return tasks.inStates(q, tasks.span(q, most), states)
}

func (f ResultFilter) query() *query {
	q := &query{}
	limit := clampLimit(f.Limit)
	most := limit
	if f.timed() {
		most = lookedAt
	}
	q.text = `SELECT t.id, t.device, t.state, t.finished_at, (SELECT max(granted_at) FROM attempts WHERE task = t.id), (SELECT max(ended_at) FROM attempts WHERE task = t.id),
		t.output, t.output_dropped, t.error FROM (` + f.ids(q, f.Last, most) + `) AS w {task w}`
	f.where(q)
	q.text = q.whole() + ` ORDER BY w.id LIMIT ` + q.arg(limit)
	return q
}

// ResultStretch returns how far Results searches. If the filter has a time, that is 50,000 results; otherwise there is no bound.
func (s tasks) ResultStretch(ctx context.Context, f ResultFilter) (Stretch, error) {
	if !f.timed() {
		return Stretch{}, nil
	}
	q := &query{}
	ids := f.ids(q, f.Last, lookedAt)
	stretch, err := s.stretchOf(ctx, q, ids, "")
	if err != nil {
		return Stretch{}, fmt.Errorf("looking through results: %w", err)
	}
	return stretch, nil
}

// Results returns the results that match, in the order of their tasks' ids.
func (s tasks) Results(ctx context.Context, f ResultFilter) ([]TaskResult, error) {
	q := f.query()
	list, err := collect(ctx, s.planned(), func(r *TaskResult) []any {
		return []any{&r.Task, &r.Device, &r.State, maybe{&r.Ended}, maybe{&r.Granted}, maybe{&r.Freed}, document{&r.Output}, &r.Dropped, &r.Error}
	}, q.text, q.args...)
	if err != nil {
		return nil, fmt.Errorf("reading results: %w", err)
	}
	return list, nil
}

// Sampled is one result of a sample.
type Sampled struct {
	Task   int64
	State  TaskState
	Ended  *time.Time
	Output json.RawMessage
	Tags   map[string]string // present tags of the device, if Sample.Tags is true
}

// Sample describes which results to sample.
type Sample struct {
	ResultFilter

	Most  int  // maximum number of results
	Whole bool // there are at most Most results, so all of them are read
	Tags  bool
}

const (
	sampleParts = 20       // parts into which the range of task ids is divided; results are taken from the beginning of each
	sampleChunk = 1000     // maximum number of results that one statement reads
	sampleBytes = 64 << 20 // approximate limit of the outputs of a sample, in bytes
)

// SampleResults calls each with results from the whole range of a batch. It divides the range of task ids into 20 parts and takes the same
// number of results from each; if the results are few, it takes all. It stops after about 64 MiB of outputs.
func (s tasks) SampleResults(ctx context.Context, of Sample, each func(Sampled)) error {
	low, high, err := s.endsOfResults(ctx, of.ResultFilter)
	if err != nil || high == 0 {
		return err
	}
	parts := int64(sampleParts)
	if of.Whole || of.Most < sampleParts {
		parts = 1
	}
	wide := (high-low)/parts + 1
	for i := range parts {
		of.After = low - 1 + i*wide
		most := (of.Most + int(parts-i) - 1) / int(parts)
		if err := s.samplePart(ctx, of, of.After+wide, most, sampleBytes/int(parts), each); err != nil {
			return fmt.Errorf("sampling results: %w", err)
		}
	}
	return nil
}

func (s tasks) samplePart(ctx context.Context, of Sample, until int64, most, bytes int, each func(Sampled)) error {
	for most > 0 && bytes > 0 {
		chunk := min(most, sampleChunk)
		q := of.query(until, chunk)
		read := 0
		err := forEach(ctx, s.planned(), func(r *Sampled) []any {
			return []any{&r.Task, &r.State, maybe{&r.Ended}, document{&r.Output}, fromJSON(&r.Tags)}
		}, func(r Sampled) bool {
			read++
			of.After, bytes = r.Task, bytes-len(r.Output)
			each(r)
			return bytes > 0
		}, q.text, q.args...)
		if err != nil || read < chunk {
			return err
		}
		most -= chunk
	}
	return nil
}

func (s Sample) query(until int64, most int) *query {
	q, tags, device := &query{}, "NULL", ""
	if s.Tags {
		tags, device = "d.tags", " {device of t}"
	}
	q.text = `SELECT t.id, t.state, t.finished_at, t.output, ` + tags + ` FROM (` + s.ids(q, until, most) + `) AS w {task w}` + device + ` ORDER BY w.id`
	return q
}

// endsOfResults returns the lowest and the highest task id with a result. Both are 0 if there are no results.
func (s tasks) endsOfResults(ctx context.Context, f ResultFilter) (low, high int64, err error) {
	ends, err := one(ctx, s.planned(), func(to *[2]int64) []any { return []any{&to[0], &to[1]} }, f.ends(), f.Batch)
	if err != nil {
		return 0, 0, fmt.Errorf("looking for results: %w", err)
	}
	return ends[0], ends[1], nil
}

func (f ResultFilter) ends() string {
	states := []TaskState{f.State}
	if f.State == "" {
		states = endedStates()
	}
	const end = `SELECT id FROM (SELECT batch, state, id FROM tasks WHERE (batch, state, id) %s AND batch %s $1
		ORDER BY batch %[3]s, state %[3]s, id %[3]s LIMIT 1) AS %[4]s WHERE batch = $1 AND state = '%[5]s'`
	parts := make([]string, 0, 2*len(states))
	for _, state := range states {
		parts = append(parts,
			fmt.Sprintf(end, `> ($1, '`+string(state)+`', 0)`, "<=", "", "first_"+string(state), state),
			fmt.Sprintf(end, `< ($1, '`+string(state)+`', 9223372036854775807)`, ">=", "DESC", "last_"+string(state), state))
	}
	return `SELECT coalesce(min(id), 0), coalesce(max(id), 0) FROM (` + strings.Join(parts, " UNION ALL ") + `) AS ends`
}
