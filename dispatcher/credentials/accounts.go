package credentials

import (
	"context"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

const (
	// accountLimit is the maximum time that a transaction of the ledger waits for the MQTT broker. While this transaction waits, it holds row
	// locks. So accountLimit is less than the time that another transaction waits for a row lock.
	accountLimit = 2500 * time.Millisecond
	// turnLimit is the maximum time that a request waits until it may use the MQTT broker. It is short, because a client waits for the response.
	turnLimit = 3 * time.Second
	// changesPart is the maximum number of changes in one transaction. It is small, because for each change the broker writes its whole
	// list of accounts.
	changesPart = 5
)

// Accounts manages the accounts of devices at the MQTT broker. A device needs an account to open a session. Every call can be repeated.
type Accounts interface {
	// Set creates or changes accounts, each with its new password.
	Set(ctx context.Context, accounts ...devices.Account) error
	// Enable allows the account to open sessions again. A missing account is not an error.
	Enable(ctx context.Context, device devices.ID) error
	// Disable ends the account's sessions and prevents new ones. A missing account is not an error.
	Disable(ctx context.Context, device devices.ID) error
	// Delete ends the account's sessions and removes the account. A missing account is not an error.
	Delete(ctx context.Context, device devices.ID) error
	// AsksLedger reports whether the broker asks the ledger about each new session and needs no accounts. Then Set does nothing.
	AsksLedger() bool
	// Disconnect ends the sessions of a device whose older tokens are no longer valid. It does nothing if Set has ended them.
	Disconnect(ctx context.Context, device devices.ID) error
}

// accounts changes accounts at the broker. Only one transaction of this process waits for the broker at a time, so that a broker that hangs
// blocks only one connection to the ledger.
type accounts struct {
	Accounts // nil if the broker has no accounts

	ledger tokenLedger
	turn   chan struct{} // holds one element, which a goroutine takes before its transaction and returns after it
}

func newAccounts(brokerAccounts Accounts, ledger tokenLedger) *accounts {
	turn := make(chan struct{}, 1)
	turn <- struct{}{}
	return &accounts{Accounts: brokerAccounts, ledger: ledger, turn: turn}
}

// brokerAsksLedger reports whether the broker calls AuthenticateSession for each session. Any other broker checks the password of a session
// itself. This password is the device's own token, if the device has one. The dispatcher does not receive it.
func (a *accounts) brokerAsksLedger() bool { return a.Accounts != nil && a.AsksLedger() }

// waitForChangeTurn waits until this goroutine may use the broker. It waits no longer than maxWait. If it returns nil, the caller must call
// releaseChangeTurn.
func (a *accounts) waitForChangeTurn(ctx context.Context, maxWait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	select {
	case <-a.turn:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: waiting for other account changes: %w", ErrBroker, ctx.Err())
	}
}

func (a *accounts) releaseChangeTurn() { a.turn <- struct{}{} }

// changeAccountSerially calls change with a function that sets the account of device at the broker, with secret as the password. If the broker
// has no accounts, this function is nil. If it has accounts, only one change runs at a time in this process.
func (a *accounts) changeAccountSerially(ctx context.Context, device devices.ID, secret string, change func(store.SetAccount) error) error {
	if a.Accounts == nil {
		return change(nil)
	}
	if err := a.waitForChangeTurn(ctx, turnLimit); err != nil {
		return err
	}
	defer a.releaseChangeTurn()
	return change(func(ctx context.Context, enabled bool) error {
		return a.setAccountsAtBroker(ctx, devices.Account{Device: device, Password: secret, Enabled: enabled})
	})
}

// setAccountsAtBroker creates or changes accounts at the broker. The caller must have called waitForChangeTurn.
func (a *accounts) setAccountsAtBroker(ctx context.Context, brokerAccounts ...devices.Account) error {
	ctx, cancel := context.WithTimeout(ctx, accountLimit)
	defer cancel()
	if err := a.Set(ctx, brokerAccounts...); err != nil {
		return fmt.Errorf("%w: %w", ErrBroker, err)
	}
	return nil
}

func (a *accounts) applyChange(ctx context.Context, recorded store.AccountChange) error {
	device := devices.ID(recorded.Device)
	switch recorded.Wanted {
	case store.AccountEnabled:
		return a.Enable(ctx, device)
	case store.AccountDisabled:
		return a.Disable(ctx, device)
	default:
		return a.Delete(ctx, device)
	}
}

// applyRecordedChanges applies at most changesPart recorded changes of accounts at the broker.
func (a *accounts) applyRecordedChanges(ctx context.Context) (applied int, err error) {
	if a.Accounts == nil {
		return 0, nil
	}
	if err := a.waitForChangeTurn(ctx, turnLimit); err != nil {
		return 0, err
	}
	defer a.releaseChangeTurn()
	return a.ledger.ApplyAccountChanges(ctx, changesPart, accountLimit, a.applyChange)
}

// SuspendAccount disables the account of device at the broker for the duration. It does nothing if the broker has no accounts, or if the
// ledger refuses the suspension (see store.SuspendAccount).
func (r *Registry) SuspendAccount(ctx context.Context, device devices.ID, duration time.Duration) error {
	if r.accounts.Accounts == nil || r.accounts.AsksLedger() {
		return nil
	}
	if err := r.accounts.waitForChangeTurn(ctx, turnLimit); err != nil {
		return err
	}
	defer r.accounts.releaseChangeTurn()
	ctx, cancel := context.WithTimeout(ctx, accountLimit)
	defer cancel()
	_, err := r.accounts.ledger.SuspendAccount(ctx, string(device), duration, func(ctx context.Context) error { return r.accounts.Disable(ctx, device) })
	return err
}

// ApplyAccountChanges updates the accounts of devices that were blocked, unblocked or deleted. It stops at the first account that the broker
// does not change. The ledger moves the failed change behind the others, and a later call tries it again.
func (r *Registry) ApplyAccountChanges(ctx context.Context) (applied int, err error) {
	for {
		n, err := r.accounts.applyRecordedChanges(ctx)
		applied += n
		if err != nil || n < changesPart {
			return applied, err
		}
	}
}
