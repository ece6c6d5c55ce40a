package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/limits"
)

type limitedSubject struct {
	Policy  string `json:"policy"`
	Subject string `json:"subject" doc:"What is counted on its own; values of a payload only as a digest"`
	Times   int64  `json:"times" doc:"Refusals in this hour of UTC and the one before; of rare ones too high at most"`
}

type limitedList struct {
	Limited []limitedSubject `json:"limited"`
}

// limitedQuery names a pool and says how many are wanted.
type limitedQuery struct {
	PoolPath
	Limit int `query:"limit" minimum:"1" maximum:"200" default:"20" doc:"At most so many"`
}

func (a *API) registerLimits(operations huma.API) {
	register(a, operations, operation("GET", "/v1/pools/{pool}/limited", "getLimited", "See who was refused most by the policies of a pool and its batches", roleViewer, 200), a.getLimited)
}

func (a *API) getLimited(ctx context.Context, in *limitedQuery) (*body[limitedList], error) {
	if err := devices.ParsePool(in.Pool); err != nil {
		return nil, err
	}
	if _, err := a.store.Pool(ctx, in.Pool); err != nil {
		return nil, err
	}
	top, err := a.options.Dispatcher.TopLimited(ctx, in.Pool, in.Limit)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", dispatcher.ErrUnavailable, err)
	}
	list := limitedList{Limited: make([]limitedSubject, len(top))}
	for i, t := range top {
		list.Limited[i] = limitedSubject{Policy: t.Policy, Subject: t.Subject, Times: t.Times}
	}
	return &body[limitedList]{list}, nil
}

// readLimits checks policies and turns them into what is kept of them.
func readLimits(policies []limits.Policy) (json.RawMessage, error) {
	if len(policies) == 0 {
		return nil, nil
	}
	if err := limits.Validate(policies); err != nil {
		return nil, problem(http.StatusUnprocessableEntity, codeInvalidField, err.Error())
	}
	return json.Marshal(policies)
}

// showLimits shows what was kept.
func showLimits(kept json.RawMessage) []limits.Policy {
	policies, err := limits.Parse(kept)
	if err != nil || policies == nil {
		return []limits.Policy{} // of a later release: not to be shown in part
	}
	return policies
}
