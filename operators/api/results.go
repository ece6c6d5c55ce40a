package api

import (
	"context"
	"unicode/utf8"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

const (
	maxFields       = 50   // fields that one query may name
	maxFieldName    = 200  // characters in the name of a field
	fieldSampleSize = 1000 // results that are sampled if only their fields are listed
	maxErrors       = 20
)

type resultStore interface {
	Batch(ctx context.Context, id int64) (store.Batch, error)
	Results(ctx context.Context, filter store.ResultFilter) ([]store.TaskResult, error)
	ResultSearchBound(ctx context.Context, filter store.ResultFilter) (store.SearchBound, error)
	SampleResults(ctx context.Context, sample store.SampleSpec, handle func(store.SampledResult)) error
	Progress(ctx context.Context, batch int64) ([]store.Progress, error)
	TopErrors(ctx context.Context, filter store.ResultFilter, sample, limit int) ([]store.ErrorCount, error)
}

type resultOperations struct{ ledger resultStore }

func (s *resultOperations) register(r *routes) {
	op := r.describeOperation("listResults")
	op.Responses = listResponses()
	register(r, r.limitListReads(op), s.get)
	registerStream(r, op, s.export)
}

type resultQuery struct {
	IDPath
	NumberPage
	operators.ResultQuery
}

// check returns an error if the fields or the period of the query are invalid.
func (q *resultQuery) check() error {
	if len(q.Fields) > maxFields {
		return invalidProblem("query.fields: %d fields, at most %d", len(q.Fields), maxFields)
	}
	for _, name := range q.Fields {
		if n := utf8.RuneCountInString(name); n == 0 || n > maxFieldName {
			return invalidProblem("query.fields: each name must have 1-%d characters", maxFieldName)
		}
	}
	return checkPeriod("since", q.Since, "until", q.Until)
}

// filter converts the query to a filter of the ledger, for tasks with id > afterTask.
func (q *resultQuery) filter(afterTask int64) store.ResultFilter {
	return store.ResultFilter{Batch: q.ID, State: store.TaskState(q.State), Since: q.Since, Until: q.Until, After: afterTask}
}

func (q *resultQuery) sampleSize() int {
	if q.Aggregate == "" && q.ByTag == "" {
		return min(q.Sample, fieldSampleSize)
	}
	return q.Sample
}

// list reads one page. The caller has checked that the batch exists.
func (s *resultOperations) list(ctx context.Context, request *resultQuery) (page listPage[operators.Result], err error) {
	filter := request.filter(request.afterNumber)
	bound, err := s.ledger.ResultSearchBound(ctx, filter)
	if err != nil {
		return page, err
	}
	filter.LastTask = bound.End
	found, more, err := readInParts(request.Size, func(last *store.TaskResult, limit int) ([]store.TaskResult, error) {
		if filter.Limit = limit; last != nil {
			filter.After = last.Task
		}
		return s.ledger.Results(ctx, filter)
	}, func(r store.TaskResult) int { return len(r.Output) + len(r.Error) })
	show := func(r store.TaskResult) operators.Result { return toAPIResult(r, request.Fields) }
	return newPage(found, more, show, func(r store.TaskResult) string { return formatDecimal(r.Task) }).continueAfter(bound), err
}

// toAPIResult converts a result of the ledger to the form of the API. If fields is not empty, the output has only these fields.
func toAPIResult(result store.TaskResult, fields []string) operators.Result {
	shown := operators.Result{
		Task: result.Task, Device: result.Device, State: string(result.State), Ended: apiTimePointer(result.Ended), Error: result.Error, Output: selectFields(result.Output, fields), Dropped: result.Dropped,
	}
	if result.Granted != nil && result.Freed != nil {
		ms := result.Freed.Sub(*result.Granted).Milliseconds()
		shown.Duration = &ms
	}
	return shown
}

func (s *resultOperations) get(ctx context.Context, in *resultQuery) (answer operators.Results, err error) {
	if err := in.check(); err != nil {
		return answer, err
	}
	batch, err := s.ledger.Batch(ctx, in.ID)
	if err != nil {
		return answer, err
	}
	page, err := s.list(ctx, in)
	if err != nil {
		return answer, err
	}
	answer = operators.Results{Results: page.entries, NextPageToken: page.next}
	if in.Token == "" {
		answer.Summary, err = s.summarize(ctx, in, batch)
	}
	return answer, err
}

// summarize returns the summary of the results of batch that request asks for.
func (s *resultOperations) summarize(ctx context.Context, request *resultQuery, batch store.Batch) (*operators.ResultSummary, error) {
	sum := &operators.ResultSummary{Errors: []operators.ErrorCount{}, Matching: countEndedTasks(batch, store.TaskState(request.State))}
	collector := newResultCollector(request)
	sample := store.SampleSpec{ResultFilter: request.filter(0), MaxResults: request.sampleSize(), ReadAll: sum.Matching <= int64(request.sampleSize()), WithTags: request.ByTag != ""}
	if err := s.ledger.SampleResults(ctx, sample, collector.addResult); err != nil {
		return nil, err
	}
	collector.writeTo(sum)
	steps, err := s.ledger.Progress(ctx, request.ID)
	if err != nil {
		return nil, err
	}
	sum.Progress = batchProgress(batch, steps)
	for _, state := range []store.TaskState{store.Failed, store.TimedOut} {
		sum.ErrorsTotal += batch.Counts[state]
		sum.ErrorsSampled += min(batch.Counts[state], int64(request.Sample))
	}
	if sum.ErrorsTotal == 0 {
		return sum, nil
	}
	top, err := s.ledger.TopErrors(ctx, request.filter(0), request.Sample, maxErrors)
	for _, e := range top {
		sum.Errors = append(sum.Errors, operators.ErrorCount(e))
	}
	return sum, err
}

// countEndedTasks returns the number of tasks of batch that ended in a state. If state is empty, it counts all ended tasks.
func countEndedTasks(batch store.Batch, state store.TaskState) int64 {
	if state != "" {
		return batch.Counts[state]
	}
	return batch.Total - countOpenTasks(batch)
}
