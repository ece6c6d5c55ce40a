package api

import (
	"context"
	"fmt"

	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

type recentAttemptsReader interface {
	RecentAttempts(ctx context.Context, scope store.TaskScope) (store.RecentAttempts, error)
}

type waitingOperations struct {
	explainer *dispatcher.Explainer
	ledger    recentAttemptsReader
}

func (w *waitingOperations) register(r *routes) {
	ofPool := r.limitListReads(r.describeOperation("getPoolWaiting"))
	ofBatch := r.limitListReads(r.describeOperation("getBatchWaiting"))
	register(r, ofPool, func(ctx context.Context, in *struct {
		PoolPath
		operators.WaitingSample
	},
	) (operators.Waiting, error) {
		return w.summarize(ctx, store.TaskScope{Pool: in.Pool}, in.SampleSize)
	})
	registerList[operators.WaitingTaskList](r, r.describeOperation("listPoolWaiting"), func(ctx context.Context, in *struct {
		PoolPath
		Page
		operators.ReasonFilter
	},
	) (listPage[operators.WaitingTask], error) {
		return w.list(ctx, store.TaskScope{Pool: in.Pool}, in.Page, in.Code)
	})
	register(r, ofBatch, func(ctx context.Context, in *struct {
		IDPath
		operators.WaitingSample
	},
	) (operators.Waiting, error) {
		return w.summarize(ctx, store.TaskScope{Batch: in.ID}, in.SampleSize)
	})
	registerList[operators.WaitingTaskList](r, r.describeOperation("listBatchWaiting"), func(ctx context.Context, in *struct {
		IDPath
		Page
		operators.ReasonFilter
	},
	) (listPage[operators.WaitingTask], error) {
		return w.list(ctx, store.TaskScope{Batch: in.ID}, in.Page, in.Code)
	})
}

// summarize summarizes why the tasks of scope (a pool or a batch) wait. It evaluates at most sampleSize tasks.
func (w *waitingOperations) summarize(ctx context.Context, scope store.TaskScope, sampleSize int) (operators.Waiting, error) {
	found, err := w.explainer.SummarizeWaiting(ctx, scope, sampleSize)
	if err != nil {
		return operators.Waiting{}, err
	}
	recent, err := w.readRecentAttempts(ctx, scope)
	shown := operators.Waiting{
		Total: found.Total, Evaluated: found.Evaluated, Sampled: int64(found.Evaluated) < found.Total, Parts: make([]operators.WaitingPart, len(found.Groups)),
		RecentAttempts: recent,
	}
	for i, p := range found.Groups {
		part := operators.WaitingPart{
			Code: string(p.Code), Label: p.Label, Count: p.Count, Detail: p.Detail, Until: apiTimeIfSet(p.Until), Remedy: p.Remedy, Actions: toAPIActions(p.Actions),
			Examples: make([]operators.WaitingExample, len(p.Examples)),
		}
		for n, one := range p.Examples {
			part.Examples[n] = operators.WaitingExample{Task: one.Task.ID, Device: one.Task.Device}
		}
		if p.Code == decision.CodeFull && recent != nil && recent.ManyAttemptsFailed {
			part.Remedy, part.Actions = decision.RemedyOfFailures, []operators.Action{}
		}
		shown.Parts[i] = part
	}
	return shown, err
}

// readRecentAttempts returns a summary of the attempts of scope (a pool or a batch) that ended within the last five minutes.
func (w *waitingOperations) readRecentAttempts(ctx context.Context, scope store.TaskScope) (*operators.RecentAttempts, error) {
	found, err := w.ledger.RecentAttempts(ctx, scope)
	if err != nil {
		return nil, err
	}
	recent := &operators.RecentAttempts{Ended: found.Ended, Failed: found.Failed, Errors: []operators.RecentError{}, ManyAttemptsFailed: store.ManyAttemptsFailed(found.Failed, found.Ended), IsSample: found.IsSample}
	for _, e := range found.Errors {
		recent.Errors = append(recent.Errors, operators.RecentError{Error: truncateText(e.Text), Attempts: e.Attempts})
	}
	return recent, nil
}

// list evaluates the next waiting tasks of scope (a pool or a batch). If code is not empty, it returns only the tasks whose first reason
// has this code. The next page starts after the last evaluated task. If this page became full earlier, the next page starts after the last
// task of this page.
func (w *waitingOperations) list(ctx context.Context, scope store.TaskScope, paging Page, code string) (page listPage[operators.WaitingTask], err error) {
	if code != "" && !decision.IsWaitingCode(decision.Code(code)) {
		return page, invalidProblem("code: %q is not a reason for which a task can wait", code)
	}
	after, err := paging.afterPosition(scope)
	if err != nil {
		return page, err
	}
	searchLimit := dispatcher.MaxEvaluated // more than a page, to find the tasks with this code
	if code == "" {
		searchLimit = min(searchLimit, paging.Size)
	}
	evaluated, more, err := w.explainer.ExplainNextTasks(ctx, scope, after, searchLimit)
	if err != nil {
		return page, err
	}
	advice := capacityAdviceFilter{ledger: w.ledger, scope: scope}
	page.entries = make([]operators.WaitingTask, 0, min(len(evaluated), paging.Size))
	for i, j := range evaluated {
		if code == "" || code == string(j.Code) {
			cause, err := advice.removeAdvice(ctx, j.Cause)
			if err != nil {
				return page, err
			}
			page.entries = append(page.entries, operators.WaitingTask{
				ID: j.Task.ID, Batch: j.Task.Batch, Device: j.Task.Device, Code: string(j.Code), Detail: j.Detail, Until: apiTimeIfSet(j.Until), Remedy: cause.Remedy, Actions: toAPIActions(cause.Actions),
				LastSeen: apiTimeIfSet(j.LastSeen),
			})
		}
		if last := i == len(evaluated)-1; last && more || !last && len(page.entries) == paging.Size {
			m := store.WaitingPositionOf(j.Task)
			page.next = pageToken(fmt.Sprintf("%d %d %d", m.Batch, m.Priority, m.Task))
			break
		}
	}
	return page, nil
}

// capacityAdviceFilter removes the advice to raise the pool's capacity from a cause why tasks of scope wait, if many attempts of scope
// fail.
type capacityAdviceFilter struct {
	ledger recentAttemptsReader
	scope  store.TaskScope // a pool or a batch
	recent *store.RecentAttempts
}

// removeAdvice returns cause without the advice to raise the capacity if many attempts fail. It reads the attempts once, and only if a
// cause has this advice.
func (c *capacityAdviceFilter) removeAdvice(ctx context.Context, cause decision.Cause) (decision.Cause, error) {
	if !cause.AdvisesHigherCapacity() {
		return cause, nil
	}
	if c.recent == nil {
		recent, err := c.ledger.RecentAttempts(ctx, c.scope)
		if err != nil {
			return cause, err
		}
		c.recent = &recent
	}
	if store.ManyAttemptsFailed(c.recent.Failed, c.recent.Ended) {
		return cause.WithoutCapacityAdvice(decision.RemedyOfFailures), nil
	}
	return cause, nil
}

// afterPosition returns the position after which the page of waiting tasks of scope (a pool or a batch) starts. The zero position is the
// beginning.
func (p Page) afterPosition(scope store.TaskScope) (position store.WaitingPosition, err error) {
	if p.after == "" {
		return position, nil
	}
	if n, err := fmt.Sscanf(p.after, "%d %d %d", &position.Batch, &position.Priority, &position.Task); n != 3 || err != nil || position.Batch < 1 || scope.Batch != 0 && position.Batch != scope.Batch {
		return position, pageTokenProblem()
	}
	return position, nil
}
