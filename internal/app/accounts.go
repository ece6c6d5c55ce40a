package app

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/broker"
	"github.com/fleetslots/dispatcher/devices/dynsec"
)

// accountProvisioning manages the accounts of devices at mosquitto. A nil *accountProvisioning means that the setting
// mqtt_provision is off.
type accountProvisioning struct {
	*dynsec.Client

	rightsChecked atomic.Bool // whether the dispatcher's own rights were checked since the last connection to the broker
}

// checkRights verifies the rights of the dispatcher's account at the broker, once after each connection: the broker may
// have restarted with another list of accounts.
func (p *accountProvisioning) checkRights(ctx context.Context) error {
	if p == nil || p.rightsChecked.Swap(true) {
		return nil
	}
	err := p.Check(ctx)
	if err != nil {
		p.rightsChecked.Store(false)
		return fmt.Errorf("checking the rights at the broker: %w", err)
	}
	return nil
}

// requireRightsCheck makes the next checkRights verify the rights again. It does nothing if p is nil.
func (p *accountProvisioning) requireRightsCheck() {
	if p != nil {
		p.rightsChecked.Store(false)
	}
}

// AsksLedger returns false: mosquitto checks passwords against its own list of accounts, and does not ask the ledger.
func (p *accountProvisioning) AsksLedger() bool { return false }

// newProvisioning returns the provisioning that config sets up, or nil if provisioning is off.
func newProvisioning(config Config, log *slog.Logger) (*accountProvisioning, error) {
	if config.MQTTProvision != provisionDynsec {
		return nil, nil //nolint:nilnil // nil means that provisioning is off
	}
	options, err := config.BrokerOptions()
	if err != nil {
		return nil, err
	}
	client, err := dynsec.New(dynsec.Options{URL: options.URL, User: options.User, Password: options.Password, TLS: options.TLS, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("mqtt_provision: %w", err)
	}
	return &accountProvisioning{Client: client}, nil
}

// updateBrokerAccounts makes the accounts at the broker agree with the devices. It returns the number of updated accounts.
func (a *App) updateBrokerAccounts(ctx context.Context) (updated int, err error) {
	if err := a.accounts.checkRights(ctx); err != nil {
		return 0, err
	}
	return a.dispatcher.Devices.ApplyAccountChanges(ctx)
}

// embeddedBrokerAccounts manages accounts at the embedded broker. The broker asks the ledger at each connection, so a change of
// an account only has to end the open sessions of the device.
type embeddedBrokerAccounts struct{ broker func() *broker.Broker }

// Set does nothing: the embedded broker stores no accounts.
func (s embeddedBrokerAccounts) Set(context.Context, ...devices.Account) error { return nil }

// AsksLedger returns true: the embedded broker checks each connection against the ledger.
func (s embeddedBrokerAccounts) AsksLedger() bool { return true }

// Enable does nothing: the embedded broker reads from the ledger whether a device is enabled.
func (s embeddedBrokerAccounts) Enable(context.Context, devices.ID) error { return nil }

// Disable ends the device's sessions.
func (s embeddedBrokerAccounts) Disable(ctx context.Context, device devices.ID) error {
	return s.Disconnect(ctx, device)
}

// Delete ends the device's sessions.
func (s embeddedBrokerAccounts) Delete(ctx context.Context, device devices.ID) error {
	return s.Disconnect(ctx, device)
}

// Disconnect ends the device's sessions.
func (s embeddedBrokerAccounts) Disconnect(_ context.Context, device devices.ID) error {
	s.broker().Disconnect(device)
	return nil
}
