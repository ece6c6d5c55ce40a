package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/fleetslots/dispatcher/internal/windows"
	"github.com/fleetslots/dispatcher/limits/policy"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

// toStoredLimits checks policies and converts them to the stored form.
func toStoredLimits(policies []operators.Policy) (stored json.RawMessage, err error) {
	if len(policies) == 0 {
		return nil, nil
	}
	if err := policy.Validate(policies); err != nil {
		return nil, invalidProblem("%v", err)
	}
	return json.Marshal(policies)
}

type factStore interface {
	DevicesWithTag(ctx context.Context, name string) (scanned int, found bool, err error)
	DevicesWithAttribute(ctx context.Context, path, firstName string) (scanned int, found bool, err error)
}

// policyWarner warns about policies that count by a tag or attribute that none of the first 1,000 devices has. All devices are
// then counted together, which is seldom intended. Before the first device is registered, there are no warnings.
type policyWarner struct{ ledger factStore }

// findWarnings returns a warning for each tag or attribute that policies count by and that no searched device has.
func (ws policyWarner) findWarnings(ctx context.Context, policies []operators.Policy) (list operators.WarningList, err error) {
	tags, attributes := policy.CountedNames(policies)
	for i, name := range slices.Concat(tags, attributes) {
		kind := "tag"
		var scanned int
		var found bool
		if i < len(tags) {
			scanned, found, err = ws.ledger.DevicesWithTag(ctx, name)
		} else {
			kind = "attribute"
			first, _, _ := strings.Cut(name, ".")
			scanned, found, err = ws.ledger.DevicesWithAttribute(ctx, name, first)
		}
		if err != nil {
			return list, err
		}
		if scanned > 0 && !found {
			list.Warnings = append(list.Warnings, fmt.Sprintf("limits: no device has the %s %q (looked at: %d): all devices are counted together", kind, name, scanned))
		}
	}
	return list, nil
}

// windowAndPolicyChange has the windows and policies that a change sets for a batch or a pool.
type windowAndPolicyChange struct {
	windows operators.Change[[]store.Window]
	limits  operators.Change[json.RawMessage]
	warned  operators.WarningList
}

// readChange checks a change of windows and a change of policies, and converts both to the form of the ledger, with warnings.
func (ws policyWarner) readChange(ctx context.Context, windowChange operators.Change[[]operators.Window], limitChange operators.Change[[]operators.Policy]) (changed windowAndPolicyChange, err error) {
	if changed.windows, err = convertChange(windowChange, toStoredWindows); err != nil {
		return changed, err
	}
	if changed.limits, err = convertChange(limitChange, toStoredLimits); err != nil || limitChange.Value == nil {
		return changed, err
	}
	changed.warned, err = ws.findWarnings(ctx, *limitChange.Value)
	return changed, err
}

// applyTo sets windows and limits, the stored rules of a batch or a pool, to the changed values. If one of them was not changed, it stays the
// same.
func (r windowAndPolicyChange) applyTo(windows *[]store.Window, limits *json.RawMessage) {
	applyChange(r.windows, windows, nil)
	applyChange(r.limits, limits, nil)
}

func toAPIPolicies(stored json.RawMessage) []operators.Policy {
	policies, err := policy.Parse(stored)
	if err != nil || policies == nil {
		return []operators.Policy{} // a later release wrote the policies, and this release cannot show them completely
	}
	return policies
}

// toStoredWindows checks the windows of a request and converts them to the stored form.
func toStoredWindows(requested []operators.Window) (stored []store.Window, err error) {
	read := make([]store.Window, len(requested))
	for i, w := range requested {
		read[i] = store.Window{Cron: w.Cron, Duration: w.Duration, Timezone: cmp.Or(w.Timezone, "UTC")}
	}
	if _, err := windows.Parse(read); err != nil {
		return nil, invalidProblem("%v", err)
	}
	if len(read) == 0 {
		return nil, nil
	}
	return read, nil
}

func toAPIWindows(stored []store.Window) []operators.Window {
	shown := make([]operators.Window, len(stored))
	for i, w := range stored {
		shown[i] = operators.Window(w)
	}
	return shown
}

// neverStartsProblem converts store.ErrNeverStarts to a problem that names the contradicting rules of a batch.
func neverStartsProblem(err error) error {
	if !errors.Is(err, store.ErrNeverStarts) {
		return err
	}
	return newProblem(http.StatusUnprocessableEntity, codeInvalidField,
		"windows, lease_ms: with finish_inside no task could ever start, because the windows of the batch and of its pool are never open together for longer than its lease")
}
