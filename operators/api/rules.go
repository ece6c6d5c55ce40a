package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/windows"
	"github.com/fleetslots/dispatcher/limits/policy"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// limitedQuery is a request for the subjects of a pool that were refused most.
type limitedQuery struct {
	PoolPath
	Limit int `query:"limit" minimum:"1" maximum:"200" default:"20" doc:"At most so many"`
}

func (p *pools) limited(ctx context.Context, in *limitedQuery) (operators.LimitedList, error) {
	if _, err := p.ledger.Pool(ctx, in.Pool); err != nil {
		return operators.LimitedList{}, err
	}
	top, err := p.policies.Top(ctx, in.Pool, in.Limit)
	if err != nil {
		return operators.LimitedList{}, fmt.Errorf("%w: %w", devices.ErrUnavailable, err)
	}
	list := operators.LimitedList{Limited: make([]operators.LimitedSubject, len(top))}
	for i, t := range top {
		list.Limited[i] = operators.LimitedSubject{Policy: t.Policy, Subject: t.Subject, Times: t.Times}
	}
	return list, nil
}

// readLimits checks policies and converts them to the stored form.
func readLimits(policies []operators.Policy) (json.RawMessage, error) {
	if len(policies) == 0 {
		return nil, nil
	}
	if err := policy.Validate(policies); err != nil {
		return nil, invalid("%v", err)
	}
	return json.Marshal(policies)
}

type factStore interface {
	DevicesWithTag(ctx context.Context, name string) (looked int, found bool, err error)
	DevicesWithAttribute(ctx context.Context, path, first string) (looked int, found bool, err error)
}

// warnings warns about policies that count by a tag or attribute that no device has. All devices are then counted
// together, which is seldom intended. Before the first device is registered, there are no warnings.
type warnings struct{ ledger factStore }

func (ws warnings) of(ctx context.Context, policies []operators.Policy) (w operators.Warned, err error) {
	tags, attributes := policy.Named(policies)
	for _, name := range tags {
		looked, found, err := ws.ledger.DevicesWithTag(ctx, name)
		if err != nil {
			return w, err
		}
		missing(&w, looked, found, "tag", name)
	}
	for _, path := range attributes {
		first, _, _ := strings.Cut(path, ".")
		looked, found, err := ws.ledger.DevicesWithAttribute(ctx, path, first)
		if err != nil {
			return w, err
		}
		missing(&w, looked, found, "attribute", path)
	}
	return w, nil
}

// rules has the windows and policies that a change sets for a batch or a pool.
type rules struct {
	windows operators.Change[[]store.Window]
	limits  operators.Change[json.RawMessage]
	warned  operators.Warned
}

func (ws warnings) readChange(ctx context.Context, opens operators.Change[[]operators.Window], limited operators.Change[[]operators.Policy]) (r rules, err error) {
	if r.windows, err = readPatch(opens, readWindows); err != nil {
		return r, err
	}
	if r.limits, err = readPatch(limited, readLimits); err != nil || limited.To == nil {
		return r, err
	}
	r.warned, err = ws.of(ctx, *limited.To)
	return r, err
}

func (r rules) apply(opens *[]store.Window, limits *json.RawMessage) {
	apply(r.windows, opens, nil)
	apply(r.limits, limits, nil)
}

func missing(w *operators.Warned, looked int, found bool, what, name string) {
	if looked > 0 && !found {
		w.Warnings = append(w.Warnings, fmt.Sprintf("limits: no device has the %s %q (looked at: %d): all devices are counted together", what, name, looked))
	}
}

// showLimits converts stored policies to the form of the API.
func showLimits(kept json.RawMessage) []operators.Policy {
	policies, err := policy.Parse(kept)
	if err != nil || policies == nil {
		return []operators.Policy{} // policies of a later release that this one cannot show completely
	}
	return policies
}

// readWindows checks the windows of a request and converts them to the stored form.
func readWindows(list []operators.Window) ([]store.Window, error) {
	read := make([]store.Window, len(list))
	for i, w := range list {
		read[i] = store.Window{Cron: w.Cron, Duration: w.Duration, Timezone: cmp.Or(w.Timezone, "UTC")}
	}
	if _, err := windows.Parse(read); err != nil {
		return nil, invalid("%v", err)
	}
	if len(read) == 0 {
		return nil, nil
	}
	return read, nil
}

func showWindows(list []store.Window) []operators.Window {
	shown := make([]operators.Window, len(list))
	for i, w := range list {
		shown[i] = operators.Window(w)
	}
	return shown
}

// neverStarts converts store.ErrNeverStarts to a problem that names the contradicting rules of a batch.
func neverStarts(err error) error {
	if !errors.Is(err, store.ErrNeverStarts) {
		return err
	}
	return problem(http.StatusUnprocessableEntity, codeInvalidField,
		"windows, lease_ms: with finish_inside nothing would ever start, for the windows of the batch and of its pool are never open together for longer than its lease")
}

// stampSet returns the time, or nil if the time is zero.
func stampSet(t time.Time) *operators.Time {
	if t.IsZero() {
		return nil
	}
	return &operators.Time{Time: t}
}
