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
	Limit int `query:"limit" minimum:"1" maximum:"200" default:"20" doc:"Maximum number of entries"`
}

func (p *pools) limited(ctx context.Context, in *limitedQuery) (operators.LimitedList, error) {
	if _, err := p.ledger.Pool(ctx, in.Pool); err != nil {
		return operators.LimitedList{}, err
	}
	top, err := p.policies.TopRefused(ctx, in.Pool, in.Limit)
	if err != nil {
		return operators.LimitedList{}, fmt.Errorf("%w: %w", devices.ErrUnavailable, err)
	}
	list := operators.LimitedList{Limited: make([]operators.LimitedSubject, len(top))}
	for i, t := range top {
		list.Limited[i] = operators.LimitedSubject{Policy: t.Policy, Subject: t.Subject, Refusals: t.RefusalCount}
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
	DevicesWithTag(ctx context.Context, name string) (scanned int, found bool, err error)
	DevicesWithAttribute(ctx context.Context, path, first string) (scanned int, found bool, err error)
}

// limitWarner warns about policies that count by a tag or attribute that none of the first 1,000 devices has. All devices are
// then counted together, which is seldom intended. Before the first device is registered, there are no warnings.
type limitWarner struct{ ledger factStore }

func (ws limitWarner) findWarnings(ctx context.Context, policies []operators.Policy) (w operators.WarningList, err error) {
	tags, attributes := policy.CountedNames(policies)
	for _, name := range tags {
		scanned, found, err := ws.ledger.DevicesWithTag(ctx, name)
		if err != nil {
			return w, err
		}
		warnIfMissing(&w, scanned, found, "tag", name)
	}
	for _, path := range attributes {
		first, _, _ := strings.Cut(path, ".")
		scanned, found, err := ws.ledger.DevicesWithAttribute(ctx, path, first)
		if err != nil {
			return w, err
		}
		warnIfMissing(&w, scanned, found, "attribute", path)
	}
	return w, nil
}

// rules has the windows and policies that a change sets for a batch or a pool.
type rules struct {
	windows operators.Change[[]store.Window]
	limits  operators.Change[json.RawMessage]
	warned  operators.WarningList
}

func (ws limitWarner) readChange(ctx context.Context, windowChange operators.Change[[]operators.Window], limitChange operators.Change[[]operators.Policy]) (r rules, err error) {
	if r.windows, err = convertChange(windowChange, readWindows); err != nil {
		return r, err
	}
	if r.limits, err = convertChange(limitChange, readLimits); err != nil || limitChange.Value == nil {
		return r, err
	}
	r.warned, err = ws.findWarnings(ctx, *limitChange.Value)
	return r, err
}

func (r rules) apply(opens *[]store.Window, limits *json.RawMessage) {
	applyChange(r.windows, opens, nil)
	applyChange(r.limits, limits, nil)
}

func warnIfMissing(w *operators.WarningList, scanned int, found bool, kind, name string) {
	if scanned > 0 && !found {
		w.Warnings = append(w.Warnings, fmt.Sprintf("limits: no device has the %s %q (looked at: %d): all devices are counted together", kind, name, scanned))
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

// neverStartsProblem converts store.ErrNeverStarts to a problem that names the contradicting rules of a batch.
func neverStartsProblem(err error) error {
	if !errors.Is(err, store.ErrNeverStarts) {
		return err
	}
	return problem(http.StatusUnprocessableEntity, codeInvalidField,
		"windows, lease_ms: with finish_inside no task could ever start, because the windows of the batch and of its pool are never open together for longer than its lease")
}

// apiTimeIfSet returns the time, or nil if the time is zero.
func apiTimeIfSet(t time.Time) *operators.Time {
	if t.IsZero() {
		return nil
	}
	return &operators.Time{Time: t}
}
