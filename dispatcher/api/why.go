package api

import (
	"context"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/operators"
)

func (a *API) explainTask(ctx context.Context, in *taskID) (*body[operators.Why], error) {
	e, err := a.options.Dispatcher.Why(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	shown := operators.Why{State: string(e.State), Reasons: make([]operators.Reason, len(e.Reasons))}
	for i, r := range e.Reasons {
		shown.Reasons[i] = showReason(r)
	}
	return &body[operators.Why]{shown}, nil
}

func showReason(r decision.Reason) operators.Reason {
	shown := operators.Reason{
		Code: string(r.Code), Detail: r.Detail, Until: stampSet(r.Until), EstimatedStart: stampSet(r.EstimatedStart), Remedy: r.Remedy,
	}
	if r.Position > 0 {
		shown.Position = &r.Position
	}
	return shown
}
