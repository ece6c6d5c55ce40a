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
	Granted *time.Time // start of the last attempt of the task; nil means that it had none
	Freed   *time.Time // end of the last attempt of the task; nil means that it had none
	Output  json.RawMessage
	Dropped bool // an output was sent, but was too large to keep
	Error   string
}

// ResultFilter selects results of one batch.
type ResultFilter struct {
	Batch    int64
	State    TaskState // empty means all states of ended tasks
	Since    time.Time // only tasks that ended at that time or later; zero means no bound
	Until    time.Time // only tasks that ended before that time; zero means no bound
	After    int64     // only tasks with id > After
	LastTask int64     // only tasks with id <= LastTask; 0 means no bound
	Limit    int       // default 100, at most 1000
}

// hasTimeBounds reports whether the filter has Since or Until. No index supports them.
func (f ResultFilter) hasTimeBounds() bool { return !f.Since.IsZero() || !f.Until.IsZero() }

func endedStates() []TaskState { return storedStates()[1:] }

// candidateIDsSQL returns the query for at most maxRows ids <= lastID of ended tasks, in ascending order, and adds its arguments to q.
func (f ResultFilter) candidateIDsSQL(q *query, lastID int64, maxRows int) string {
	states := []TaskState{f.State}
	if f.State == "" {
		states = endedStates()
	}
	tasks := TaskFilter{Batch: f.Batch, After: f.After, Until: lastID}
	return tasks.stateTaskIDsSQL(q, tasks.idRange(q, maxRows), states)
}

func (f ResultFilter) resultsQuery() *query {
	q := &query{}
	limit := clampLimit(f.Limit)
	maxRows := limit
	if f.hasTimeBounds() {
		maxRows = searchLimit
	}
	q.text = `SELECT t.id, t.device, t.state, t.finished_at, (SELECT max(granted_at) FROM attempts WHERE task = t.id), (SELECT max(ended_at) FROM attempts WHERE task = t.id),
		t.output, t.output_dropped, t.error FROM (` + f.candidateIDsSQL(q, f.LastTask, maxRows) + `) AS w {task w}`
	q.whereTimeBetween("t.finished_at", f.Since, f.Until)
	q.text = q.textWithoutLimit() + ` ORDER BY w.id LIMIT ` + q.addArg(limit)
	return q
}

// ResultSearchBound returns the id up to which one call of Results searches. If filter has Since or Until, one call searches 50,000
// results. Otherwise there is no bound.
func (s tasks) ResultSearchBound(ctx context.Context, filter ResultFilter) (_ SearchBound, err error) {
	defer wrapError(&err, "searching results")
	if !filter.hasTimeBounds() {
		return SearchBound{}, nil
	}
	q := &query{}
	ids := filter.candidateIDsSQL(q, filter.LastTask, searchLimit)
	return s.searchBound(ctx, q, ids, "")
}

// Results returns the results that match filter, in the order of their tasks' ids.
func (s tasks) Results(ctx context.Context, filter ResultFilter) (_ []TaskResult, err error) {
	defer wrapError(&err, "reading results")
	q := filter.resultsQuery()
	return collect(ctx, s.customPlanSession(), func(r *TaskResult) []any {
		return []any{&r.Task, &r.Device, &r.State, &r.Ended, &r.Granted, &r.Freed, &r.Output, &r.Dropped, &r.Error}
	}, q.text, q.args...)
}

// SampledResult is one result of a sample.
type SampledResult struct {
	Task   int64
	State  TaskState
	Ended  *time.Time
	Output json.RawMessage
	Tags   map[string]string // present tags of the device, if SampleSpec.WithTags is true
}

// SampleSpec describes which results SampleResults selects.
type SampleSpec struct {
	ResultFilter

	MaxResults int  // maximum number of results
	ReadAll    bool // the caller sets it if there are at most MaxResults results; then all are read
	WithTags   bool
}

const (
	sampleParts = 20       // parts into which the range of task ids is divided; results are taken from the beginning of each
	sampleChunk = 1000     // maximum number of results that one statement reads
	sampleBytes = 64 << 20 // approximate limit of the outputs of a sample, in bytes
)

// SampleResults calls handle with each result of a sample of a batch. The sample has about the same number of results from each of 20 parts
// of the range of ids, or all results if spec.ReadAll is true. The sample ends after about 64 MiB of outputs.
func (s tasks) SampleResults(ctx context.Context, spec SampleSpec, handle func(SampledResult)) error {
	low, high, err := s.resultIDBounds(ctx, spec.ResultFilter)
	if err != nil || high == 0 {
		return err
	}
	parts := int64(sampleParts)
	if spec.ReadAll || spec.MaxResults < sampleParts {
		parts = 1
	}
	wide := (high-low)/parts + 1
	for i := range parts {
		spec.After = low - 1 + i*wide
		maxResults := (spec.MaxResults + int(parts-i) - 1) / int(parts)
		if err := s.samplePart(ctx, spec, spec.After+wide, maxResults, sampleBytes/int(parts), handle); err != nil {
			return fmt.Errorf("sampling results: %w", err)
		}
	}
	return nil
}

// samplePart calls handle with at most maxResults results with spec.After < id <= lastID. It stops after about maxBytes of outputs.
func (s tasks) samplePart(ctx context.Context, spec SampleSpec, lastID int64, maxResults, maxBytes int, handle func(SampledResult)) error {
	for maxResults > 0 && maxBytes > 0 {
		chunk := min(maxResults, sampleChunk)
		q := spec.chunkQuery(lastID, chunk)
		read := 0
		err := forEach(ctx, s.customPlanSession(), func(r *SampledResult) []any {
			return []any{&r.Task, &r.State, &r.Ended, &r.Output, &r.Tags}
		}, func(r SampledResult) bool {
			read++
			spec.After, maxBytes = r.Task, maxBytes-len(r.Output)
			handle(r)
			return maxBytes > 0
		}, q.text, q.args...)
		if err != nil || read < chunk {
			return err
		}
		maxResults -= chunk
	}
	return nil
}

// chunkQuery returns the query for at most maxRows results with ids <= lastID.
func (s SampleSpec) chunkQuery(lastID int64, maxRows int) *query {
	q, tags, device := &query{}, "NULL", ""
	if s.WithTags {
		tags, device = "d.tags", " {device of t}"
	}
	q.text = `SELECT t.id, t.state, t.finished_at, t.output, ` + tags + ` FROM (` + s.candidateIDsSQL(q, lastID, maxRows) + `) AS w {task w}` + device + ` ORDER BY w.id`
	return q
}

// resultIDBounds returns the lowest and the highest id of a result that filter may select, or 0 and 0.
func (s tasks) resultIDBounds(ctx context.Context, filter ResultFilter) (low, high int64, err error) {
	ends, err := queryOne(ctx, s.customPlanSession(), func(to *[2]int64) []any { return []any{&to[0], &to[1]} }, filter.idBoundsSQL(), filter.Batch)
	if err != nil {
		return 0, 0, fmt.Errorf("finding results: %w", err)
	}
	return ends[0], ends[1], nil
}

func (f ResultFilter) idBoundsSQL() string {
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
