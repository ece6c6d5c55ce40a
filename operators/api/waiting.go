package api

import (
	"context"
	"fmt"

	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// waiting has the operations on the waiting tasks of a pool or a batch.
type waiting struct{ explainer *dispatcher.Explainer }

// WaitingSample limits how many tasks are evaluated, and so the cost.
type WaitingSample struct {
	Most int `query:"sample" minimum:"1" maximum:"500" default:"500" doc:"Up to so many tasks are judged; of more, a sample"`
}

// WaitingFor selects waiting tasks by their first reason.
type WaitingFor struct {
	Code string `query:"code" maxLength:"64" doc:"Only tasks whose first reason has this code"`
}

type poolWaiting struct {
	PoolPath
	Page
	WaitingFor
}

type batchWaiting struct {
	Numbered
	Page
	WaitingFor
}

func (w *waiting) register(r *routes) {
	ofPool := operation("GET", "/v1/pools/{pool}/waiting", "getPoolWaiting", "Say what the tasks of a pool wait for, how many for what", roleViewer, 200)
	ofBatch := operation("GET", "/v1/batches/{id}/waiting", "getBatchWaiting", "Say what the tasks of a batch wait for, how many for what", roleViewer, 200)
	ofPool.Middlewares, ofBatch.Middlewares = r.steps(r.turnOfList), r.steps(r.turnOfList)
	answer := func(p pageOf[operators.WaitingTask]) operators.WaitingTaskList {
		return operators.WaitingTaskList{Tasks: p.entries, NextPageToken: p.next}
	}
	register(r, ofPool, func(ctx context.Context, in *struct {
		PoolPath
		WaitingSample
	},
	) (operators.Waiting, error) {
		return w.parts(ctx, store.WaitingOf{Pool: in.Pool}, in.Most)
	})
	registerList(r, operation("GET", "/v1/pools/{pool}/waiting/tasks", "listPoolWaiting", "List the tasks of a pool that wait, each with the first reason why", roleViewer, 200),
		func(ctx context.Context, in *poolWaiting) (pageOf[operators.WaitingTask], error) {
			return w.list(ctx, store.WaitingOf{Pool: in.Pool}, in.Page, in.Code)
		}, answer)
	register(r, ofBatch, func(ctx context.Context, in *struct {
		Numbered
		WaitingSample
	},
	) (operators.Waiting, error) {
		return w.parts(ctx, store.WaitingOf{Batch: in.ID}, in.Most)
	})
	registerList(r, operation("GET", "/v1/batches/{id}/waiting/tasks", "listBatchWaiting", "List the tasks of a batch that wait, each with the first reason why", roleViewer, 200),
		func(ctx context.Context, in *batchWaiting) (pageOf[operators.WaitingTask], error) {
			return w.list(ctx, store.WaitingOf{Batch: in.ID}, in.Page, in.Code)
		}, answer)
}

func (w *waiting) parts(ctx context.Context, of store.WaitingOf, most int) (operators.Waiting, error) {
	found, err := w.explainer.WhyWaiting(ctx, of, most)
	shown := operators.Waiting{
		Total: found.Total, Judged: found.Judged, Sampled: int64(found.Judged) < found.Total, Parts: make([]operators.WaitingPart, len(found.Parts)),
	}
	for i, p := range found.Parts {
		part := operators.WaitingPart{
			Code: string(p.Code), Label: p.Label, Count: p.Count, Detail: p.Detail, Until: stampSet(p.Until), Remedy: p.Remedy, Actions: showActions(p.Actions),
			Examples: make([]operators.WaitingExample, len(p.Examples)),
		}
		for n, one := range p.Examples {
			part.Examples[n] = operators.WaitingExample{Task: one.Task.ID, Device: one.Task.Device}
		}
		shown.Parts[i] = part
	}
	return shown, err
}

// list evaluates the next tasks. The token of the next page points after the last task that was evaluated or listed.
func (w *waiting) list(ctx context.Context, of store.WaitingOf, in Page, code string) (page pageOf[operators.WaitingTask], err error) {
	if code != "" && !decision.MayWait(decision.Code(code)) {
		return page, invalid("code: %q is no reason that a task can wait for", code)
	}
	after, err := in.afterMark(of)
	if err != nil {
		return page, err
	}
	looked := dispatcher.MostJudged // more than a page, to find the tasks with this code
	if code == "" {
		looked = min(looked, in.Size)
	}
	judged, more, err := w.explainer.NextWaiting(ctx, of, after, looked)
	if err != nil {
		return page, err
	}
	page.entries = make([]operators.WaitingTask, 0, min(len(judged), in.Size))
	for i, j := range judged {
		if code == "" || code == string(j.Code) {
			page.entries = append(page.entries, operators.WaitingTask{
				ID: j.Task.ID, Batch: j.Task.Batch, Device: j.Task.Device, Code: string(j.Code), Detail: j.Detail, Until: stampSet(j.Until), Remedy: j.Remedy, Actions: showActions(j.Actions),
			})
		}
		if last := i == len(judged)-1; last && more || !last && len(page.entries) == in.Size {
			m := store.MarkOf(j.Task)
			page.next = pageToken(fmt.Sprintf("%d %d %d", m.Batch, m.Priority, m.Task))
			break
		}
	}
	return page, nil
}

// afterMark returns the position after which the page starts, in the listed batch. The zero mark is the beginning.
func (p Page) afterMark(of store.WaitingOf) (mark store.LineMark, err error) {
	text, err := p.afterName()
	if err != nil || text == "" {
		return mark, err
	}
	if n, err := fmt.Sscanf(text, "%d %d %d", &mark.Batch, &mark.Priority, &mark.Task); n != 3 || err != nil || mark.Batch < 1 || of.Batch != 0 && mark.Batch != of.Batch {
		return mark, badPage()
	}
	return mark, nil
}
