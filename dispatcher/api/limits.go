package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/limits/policy"
	"github.com/fleetslots/dispatcher/operators"
)

// limitedQuery names a pool and says how many are wanted.
type limitedQuery struct {
	PoolPath
	Limit int `query:"limit" minimum:"1" maximum:"200" default:"20" doc:"At most so many"`
}

func (a *API) registerLimits(operations huma.API) {
	register(a, operations, operation("GET", "/v1/pools/{pool}/limited", "getLimited", "See the subjects refused most by the policies of a pool and its batches", roleViewer, 200), a.getLimited)
}

func (a *API) getLimited(ctx context.Context, in *limitedQuery) (*body[operators.LimitedList], error) {
	if err := devices.ParsePool(in.Pool); err != nil {
		return nil, err
	}
	if _, err := a.store.Pool(ctx, in.Pool); err != nil {
		return nil, err
	}
	top, err := a.options.Dispatcher.Policies.Top(ctx, in.Pool, in.Limit)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", devices.ErrUnavailable, err)
	}
	list := operators.LimitedList{Limited: make([]operators.LimitedSubject, len(top))}
	for i, t := range top {
		list.Limited[i] = operators.LimitedSubject{Policy: t.Policy, Subject: t.Subject, Times: t.Times}
	}
	return &body[operators.LimitedList]{list}, nil
}

// readLimits checks policies and turns them into what is kept of them.
func readLimits(policies []operators.Policy) (json.RawMessage, error) {
	if len(policies) == 0 {
		return nil, nil
	}
	if err := policy.Validate(policies); err != nil {
		return nil, problem(http.StatusUnprocessableEntity, codeInvalidField, err.Error())
	}
	return json.Marshal(policies)
}

type factStore interface {
	DevicesWithTag(ctx context.Context, name string) (looked int, found bool, err error)
	DevicesWithAttribute(ctx context.Context, path, first string) (looked int, found bool, err error)
}

// warnings are of policies that count by what no device has: then all devices are
// counted together, which is seldom meant. Nothing is said before there are devices.
func (a *API) warnings(ctx context.Context, policies []operators.Policy) (w operators.Warned, err error) {
	tags, attributes := policy.Named(policies)
	for _, name := range tags {
		looked, found, err := a.store.DevicesWithTag(ctx, name)
		if err != nil {
			return w, err
		}
		missing(&w, looked, found, "tag", name)
	}
	for _, path := range attributes {
		first, _, _ := strings.Cut(path, ".")
		looked, found, err := a.store.DevicesWithAttribute(ctx, path, first)
		if err != nil {
			return w, err
		}
		missing(&w, looked, found, "attribute", path)
	}
	return w, nil
}

// patchWarnings are those of policies that a change may leave as they are.
func (a *API) patchWarnings(ctx context.Context, changed operators.Change[[]operators.Policy]) (operators.Warned, error) {
	if changed.To == nil {
		return operators.Warned{}, nil
	}
	return a.warnings(ctx, *changed.To)
}

func missing(w *operators.Warned, looked int, found bool, what, name string) {
	if looked > 0 && !found {
		w.Warnings = append(w.Warnings, fmt.Sprintf("limits: no device has the %s %q (looked at: %d): all devices are counted together", what, name, looked))
	}
}

// showLimits shows what was kept.
func showLimits(kept json.RawMessage) []operators.Policy {
	policies, err := policy.Parse(kept)
	if err != nil || policies == nil {
		return []operators.Policy{} // of a later release: not to be shown in part
	}
	return policies
}
