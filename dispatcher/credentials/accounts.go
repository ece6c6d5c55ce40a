package credentials

import (
	"context"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

const (
	// accountLimit bounds what one transaction of the ledger waits for the
	// broker: it is below the time that others wait for the rows it locks.
	accountLimit = 2500 * time.Millisecond
	// turnLimit bounds the wait for those before, of what is to be answered soon.
	turnLimit = 3 * time.Second
	// changesPart is how many changes one transaction takes: each costs the broker's whole list.
	changesPart = 5
)

// Accounts are those of the devices at the MQTT broker: what opens a session
// there. Every call ends with its context, and may be repeated.
type Accounts interface {
	// Set makes or changes accounts, each with its password from now on.
	Set(ctx context.Context, list ...devices.Account) error
	// Enable lets the account open sessions again; none is no error.
	Enable(ctx context.Context, device devices.ID) error
	// Disable ends the account's sessions and lets it open none; none is no error.
	Disable(ctx context.Context, device devices.ID) error
	// Delete ends the account's sessions and removes it; none is no error.
	Delete(ctx context.Context, device devices.ID) error
	// AsksLedger says that there are no accounts to make: the broker asks the
	// ledger about each new session, and Set does nothing.
	AsksLedger() bool
	// Disconnect ends the sessions that Set left open with an older secret.
	Disconnect(ctx context.Context, device devices.ID) error
}

// accounts lets one transaction at a time wait for the broker: one that hangs
// costs one connection to the ledger, not all.
type accounts struct {
	Accounts // nil: none

	ledger accountLedger
	turn   chan struct{} // holds one element: the goroutine that takes it is at work
}

func newAccounts(a Accounts, ledger accountLedger) *accounts {
	turn := make(chan struct{}, 1)
	turn <- struct{}{}
	return &accounts{Accounts: a, ledger: ledger, turn: turn}
}

// askLedger is so at a broker that asks AuthenticateSession. Any other one has let a
// device in by a secret that is not told here: its own, if it has one.
func (a *accounts) askLedger() bool { return a.Accounts != nil && a.AsksLedger() }

func (a *accounts) take(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-a.turn:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: waiting for others: %w", ErrBroker, ctx.Err())
	}
}

func (a *accounts) giveBack() { a.turn <- struct{}{} }

// serially runs change, one at a time of all devices, with what sets the device's account.
func (a *accounts) serially(ctx context.Context, device devices.ID, secret string, change func(store.SetAccount) error) error {
	if a.Accounts == nil {
		return change(nil)
	}
	if err := a.take(ctx, turnLimit); err != nil {
		return err
	}
	defer a.giveBack()
	return change(func(ctx context.Context, enabled bool) error {
		return a.set(ctx, devices.Account{Device: device, Password: secret, Enabled: enabled})
	})
}

// set is called by the transaction whose turn it is.
func (a *accounts) set(ctx context.Context, list ...devices.Account) error {
	ctx, cancel := context.WithTimeout(ctx, accountLimit)
	defer cancel()
	if err := a.Set(ctx, list...); err != nil {
		return fmt.Errorf("%w: %w", ErrBroker, err)
	}
	return nil
}

// follow applies a noted change.
func (a *accounts) follow(ctx context.Context, c store.AccountChange) error {
	device := devices.ID(c.Device)
	switch c.Wanted {
	case store.AccountEnabled:
		return a.Enable(ctx, device)
	case store.AccountDisabled:
		return a.Disable(ctx, device)
	default:
		return a.Delete(ctx, device)
	}
}

// followPart applies at most changesPart of the changes that the ledger has recorded.
func (a *accounts) followPart(ctx context.Context) (followed int, err error) {
	if a.Accounts == nil {
		return 0, nil
	}
	if err := a.take(ctx, turnLimit); err != nil {
		return 0, err
	}
	defer a.giveBack()
	return a.ledger.ApplyAccountChanges(ctx, changesPart, accountLimit, a.follow)
}

// FollowDevices changes the accounts at the broker of devices that were blocked, unblocked or deleted. It
// returns how many it changed, and ends with the first error. The next call tries the failed change again.
func (r *Registry) FollowDevices(ctx context.Context) (followed int, err error) {
	for {
		n, err := r.accounts.followPart(ctx)
		followed += n
		if err != nil || n < changesPart {
			return followed, err
		}
	}
}
