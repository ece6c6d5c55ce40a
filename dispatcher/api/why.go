package api

import (
	"context"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
)

type whyBody struct {
	State   string       `json:"state" enum:"pending,dispatched,succeeded,failed,timed_out,cancelled,expired"`
	Reasons []reasonBody `json:"reasons" doc:"One at least; the first is what the device is told, or would be"`
}

type reasonBody struct {
	Code           string     `json:"code" doc:"Stable name, for programs; listed in the docs, and there may be more"`
	Detail         string     `json:"detail" doc:"For people"`
	Until          *timestamp `json:"until" nullable:"true" doc:"When it ends by itself, if it does; null: unknown"`
	Position       *int       `json:"position" nullable:"true" doc:"In the line of its pool; 1 is next; null: in no line"`
	EstimatedStart *timestamp `json:"estimated_start" nullable:"true" doc:"When the task likely starts; null: cannot be known"`
	Remedy         string     `json:"remedy" doc:"What would change it, for people"`
}

func (a *API) explainTask(ctx context.Context, in *taskID) (*body[whyBody], error) {
	e, err := a.options.Dispatcher.Why(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	shown := whyBody{State: string(e.State), Reasons: make([]reasonBody, len(e.Reasons))}
	for i, r := range e.Reasons {
		shown.Reasons[i] = showReason(r)
	}
	return &body[whyBody]{shown}, nil
}

func showReason(r decision.Reason) reasonBody {
	shown := reasonBody{
		Code: string(r.Code), Detail: r.Detail, Until: stampSet(r.Until), EstimatedStart: stampSet(r.EstimatedStart), Remedy: r.Remedy,
	}
	if r.Position > 0 {
		shown.Position = &r.Position
	}
	return shown
}
