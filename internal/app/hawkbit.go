package app

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/hawkbit"
	devicehttp "github.com/fleetslots/dispatcher/devices/http"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/operators/api"
	"github.com/fleetslots/dispatcher/store"
)

// defaultTenant is the tenant that clients of hawkBit use by default.
const defaultTenant = "DEFAULT"

// validateHawkbit returns an error if the settings for devices that speak hawkBit's DDI are invalid.
func (c Config) validateHawkbit() error {
	var errs []error
	if !regexp.MustCompile(`^[A-Za-z0-9_-]{0,40}$`).MatchString(c.HawkbitTenant) || c.HawkbitTenant == "v1" {
		errs = append(errs, errors.New("hawkbit_tenant: 1 to 40 letters, digits, - or _, and not v1; or off"))
	}
	if c.PublicURL != "" {
		link, err := url.Parse(c.PublicURL)
		if err != nil || link.Host == "" || link.Scheme != "http" && link.Scheme != "https" || link.RawQuery != "" || link.User != nil {
			errs = append(errs, errors.New("public_url: must be a complete http:// or https:// address without a query"))
		}
	}
	return errors.Join(errs...)
}

// newHawkbit returns the handler for devices that speak hawkBit's DDI, or nil if the settings do not allow such devices.
func (a *App) newHawkbit(intake *devicehttp.Intake, ledger *store.Store, metrics prometheus.Registerer) api.DevicePaths {
	if a.config.HawkbitTenant == settingOff || a.config.HawkbitTenant == "" {
		return nil
	}
	overruns := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "dispatcher_hawkbit_overruns_total", Help: "DDI devices that were heard again after their lease had ended without a result.",
	})
	metrics.MustRegister(overruns)
	return hawkbit.New(hawkbit.Options{
		Intake: intake, Ledger: hawkbitLedger{ledger}, Tenant: a.config.HawkbitTenant, PublicURL: strings.TrimSuffix(a.config.PublicURL, "/"),
		FromProxy: a.gate.CameThroughProxy, AllowGateway: credentials.FleetMode(a.config.FleetTokenMode) != credentials.FleetEnroll,
		OnOverrun: func(devices.ID, int64) { overruns.Inc() },
	})
}

type hawkbitLedger struct{ store *store.Store }

// toHawkbitAction converts an action of the store to the type of package hawkbit.
func toHawkbitAction(stored store.HawkbitAction) hawkbit.Action {
	return hawkbit.Action{
		ID: stored.ID, Task: stored.Task, Token: stored.Token, IsOpen: stored.State == store.HawkbitOpen, IsInstalled: stored.State == store.HawkbitInstalled,
		AsksAttributes: stored.AsksAttributes, Kind: stored.Kind, Payload: stored.Payload, Attributes: stored.Attributes,
	}
}

// Action implements hawkbit.Ledger.
func (l hawkbitLedger) Action(ctx context.Context, device devices.ID) (hawkbit.Action, error) {
	found, err := l.store.HawkbitAction(ctx, string(device))
	return toHawkbitAction(found), err
}

// UpdateAction implements hawkbit.Ledger.
func (l hawkbitLedger) UpdateAction(ctx context.Context, device devices.ID, task, token int64) (action hawkbit.Action, hasOverrun bool, err error) {
	updated, hasOverrun, err := l.store.UpdateHawkbitAction(ctx, string(device), task, token)
	return toHawkbitAction(updated), hasOverrun, err
}

// EndAction implements hawkbit.Ledger.
func (l hawkbitLedger) EndAction(ctx context.Context, device devices.ID, id int64, isSuccess bool) error {
	state := store.HawkbitClosed
	if isSuccess {
		state = store.HawkbitInstalled
	}
	return l.store.EndHawkbitAction(ctx, string(device), id, state)
}

// RecordAttributes implements hawkbit.Ledger.
func (l hawkbitLedger) RecordAttributes(ctx context.Context, device devices.ID) error {
	return l.store.RecordHawkbitAttributes(ctx, string(device))
}

// WithdrawCancel implements hawkbit.Ledger.
func (l hawkbitLedger) WithdrawCancel(ctx context.Context, task, token int64) error {
	if err := l.store.WithdrawHawkbitCancel(ctx, task, token); err != nil {
		return fmt.Errorf("withdrawing a cancel that the device refused: %w", err)
	}
	return nil
}
