package api

import (
	"context"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/operators"
)

func (t *tasks) why(ctx context.Context, in *Numbered) (operators.Why, error) {
	e, err := t.explain(ctx, in.ID)
	shown := operators.Why{State: string(e.State), Reasons: make([]operators.Reason, len(e.Reasons))}
	for i, r := range e.Reasons {
		shown.Reasons[i] = showReason(r)
	}
	return shown, err
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
