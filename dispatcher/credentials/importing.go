package credentials

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

const (
	// makingLimit is the time limit for creating, at the broker, the accounts of an import of devices.
	makingLimit = 5 * time.Minute
	// stageKept is the time after which the accounts of an import are deleted if the process of the import died. A part of the accounts whose
	// creation fails is retried for about the same time. If stageKept were too short, imports would fail, without other harm.
	stageKept = 30 * time.Second
	partPause = time.Second
	dropLimit = 3 * time.Second
	// askTime is the intended duration of one request to the broker. During a request, the broker serves no client.
	askTime = 200 * time.Millisecond
	// firstPartSize is the number of accounts in the first request, and maxPartSize the maximum number in one request. The broker accepts
	// packets of 128 KiB, and an account takes at most 1.7 KiB.
	firstPartSize, maxPartSize = 5, 50
)

// ImportDevices registers all of newDevices, or none, and sets their Hash. onExisting says what happens to devices that exist already. The older
// tokens of such a device stay valid for the duration overlap. tokens has one element for each device: its new token, or "" if the device got no
// token. ImportDevices returns the errors of store.ImportDevices, store.StageAccounts and store.SetStagedAccounts, ErrBroker and ErrOnePassword.
func (r *Registry) ImportDevices(ctx context.Context, actor string, newDevices []store.NewDevice, onExisting store.OnExisting, overlap time.Duration) (tokens []string, err error) {
	tokens = make([]string, len(newDevices))
	for i := range newDevices {
		tokens[i] = NewToken()
		hash := HashToken(tokens[i])
		newDevices[i].Hash = hash[:]
	}
	var hasToken []bool
	if r.accounts.Accounts == nil || r.accounts.brokerAsksLedger() {
		hasToken, err = r.config.Ledger.ImportDevices(ctx, actor, newDevices, onExisting, overlap, 0)
	} else {
		hasToken, err = r.importWithAccounts(ctx, actor, newDevices, tokens, onExisting)
	}
	if err != nil {
		return nil, err
	}
	for i := range tokens {
		if !hasToken[i] {
			tokens[i] = ""
		}
	}
	return tokens, nil
}

// importWithAccounts creates the accounts of newDevices at the broker, and registers the devices afterwards. One transaction for both would
// stay open for longer than other transactions wait for its rows. hasToken says for each device whether the device got its token.
func (r *Registry) importWithAccounts(ctx context.Context, actor string, newDevices []store.NewDevice, tokens []string, onExisting store.OnExisting) (hasToken []bool, err error) {
	rotates := onExisting == store.RotateExisting
	if rotates {
		onExisting = store.RefuseExisting
	}
	s := staging{registry: r, ledger: r.config.Ledger, stage: store.NewStage(store.OnceFrom(ctx))}
	defer s.markStagedAccountsForDeletion(ctx)
	err = s.stageAccounts(ctx, newDevices, tokens, onExisting)
	if err == nil {
		err = s.makeStagedAccounts(ctx)
	}
	if err == nil {
		hasToken, err = s.ledger.ImportDevices(ctx, actor, newDevices, onExisting, 0, s.stage)
	}
	if rotates && errors.Is(err, store.ErrExists) {
		err = fmt.Errorf("%w: %w", ErrOnePassword, err)
	}
	return hasToken, err
}

// staging creates the accounts of an import at the broker, before the import registers the devices.
type staging struct {
	registry *Registry
	ledger   deviceLedger
	stage    store.Stage
	ids      []string
	accounts []devices.Account // the account of each of the ids
}

// stageAccounts records in the ledger which accounts the import will create. tokens are the passwords of the accounts, one for each new device.
func (s *staging) stageAccounts(ctx context.Context, newDevices []store.NewDevice, tokens []string, onExisting store.OnExisting) error {
	if err := s.registry.accounts.waitForChangeTurn(ctx, makingLimit); err != nil {
		return err
	}
	defer s.registry.accounts.releaseChangeTurn()
	staged, err := s.ledger.StageAccounts(ctx, s.stage, newDevices, onExisting, stageKept)
	for _, d := range staged {
		id := newDevices[d.Entry].ID
		s.ids = append(s.ids, id)
		s.accounts = append(s.accounts, devices.Account{Device: devices.ID(id), Password: tokens[d.Entry], Enabled: d.Enabled})
	}
	return err
}

// makeStagedAccounts creates the accounts in parts, so that the broker can serve clients between two parts. It retries a failed part, because a
// failure would waste the earlier parts. It does not retry the first part. It gives up when stageKept has passed, or when another request takes
// over an account (store.ErrAccountConflict).
func (s *staging) makeStagedAccounts(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, makingLimit)
	defer cancel()
	part := firstPartSize
	var failed error // the error of the previous attempt of this part
	for made := 0; made < len(s.ids); {
		end := min(made+part, len(s.ids))
		took, err := s.makeStagedAccountsInRange(ctx, made, end)
		switch {
		case err == nil:
			part = min(1+int(time.Duration(end-made)*askTime/max(took, time.Millisecond)), maxPartSize)
			made, failed = end, nil
		case made == 0 || errors.Is(err, store.ErrAccountConflict) || !waitFor(ctx, partPause):
			return fmt.Errorf("%d of %d accounts: %w", made, len(s.ids), errors.Join(failed, err))
		default: // the part may have been too large
			part, failed = firstPartSize, err
		}
	}
	return nil
}

// waitFor waits for this duration. hasElapsed is false if ctx ended earlier.
func waitFor(ctx context.Context, duration time.Duration) (hasElapsed bool) {
	select {
	case <-time.After(duration):
		return true
	case <-ctx.Done():
		return false
	}
}

// makeStagedAccountsInRange creates the accounts with the indexes from <= index < to. took is the duration of the request to the broker.
func (s *staging) makeStagedAccountsInRange(ctx context.Context, from, to int) (took time.Duration, err error) {
	if err := s.registry.accounts.waitForChangeTurn(ctx, makingLimit); err != nil {
		return 0, err
	}
	defer s.registry.accounts.releaseChangeTurn()
	err = s.ledger.SetStagedAccounts(ctx, s.stage, s.ids, stageKept, func(ctx context.Context) error {
		began := s.registry.config.Now()
		err := s.registry.accounts.setAccountsAtBroker(ctx, s.accounts[from:to]...)
		took = s.registry.config.Now().Sub(began)
		return err
	})
	return took, err
}

// markStagedAccountsForDeletion marks the accounts of a failed import for deletion, even if the client has disconnected. After a successful
// import, it does nothing, because the ledger no longer lists the accounts of the import.
func (s *staging) markStagedAccountsForDeletion(ctx context.Context) {
	if len(s.ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropLimit)
	defer cancel()
	if err := s.ledger.DropStage(ctx, s.stage, s.ids); err != nil {
		s.registry.config.Logger.WarnContext(ctx, "accounts of a failed import not deleted; they are deleted later", "in", stageKept, "err", err)
	}
}
