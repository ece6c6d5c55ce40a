package store

import (
	"context"
	"fmt"
	"time"
)

// AccountState is what a device's account at the MQTT broker has to be.
type AccountState string

// The states of an account.
const (
	AccountEnabled  AccountState = "enabled"
	AccountDisabled AccountState = "disabled"
	AccountDeleted  AccountState = "deleted"
)

// AccountChange is a change of a device that its account has yet to follow.
type AccountChange struct {
	Device string
	Wanted AccountState
}

// SetAccount gives the account of a device the secret whose hash is being
// stored. The store calls it as the last thing before COMMIT, one at a time
// over all replicas, and rolls back when it fails; it must be bounded to a few
// seconds. nil: there are no accounts.
type SetAccount func(ctx context.Context, enabled bool) error

// ApplyAccount lets an account follow a change of its device.
type ApplyAccount func(context.Context, AccountChange) error

// accountLock is the name that SetAccount and the changes are locked by: no
// pool has it.
const accountLock = "$accounts"

// NoteAccounts lets the store note, from now on, that the account of a device
// has to follow when it was blocked, unblocked or deleted. Call it before the
// store is used.
func (s credentials) NoteAccounts() { s.accounts = true }

// ApplyAccountChanges gives up to limit of the noted changes that are due to apply,
// oldest first, and forgets those that it applied. Accounts that an import left behind
// (see Stage) come last: they may be many, and nobody has their secrets. It ends with the
// first error; that change then waits behind the others. A change may be applied more than once,
// and replicas may call it at once. The context of apply ends within that time
// of the first: meanwhile whoever changes one of these devices waits.
func (s credentials) ApplyAccountChanges(ctx context.Context, limit int, within time.Duration, apply ApplyAccount) (applied int, err error) {
	waiting, err := one(ctx, s.read(), only[bool], `SELECT EXISTS (SELECT 1 FROM account_changes WHERE changed_at <= (SELECT {now}))`)
	if err != nil || !waiting {
		return 0, err
	}
	var failed error
	err = s.write(ctx, func(tx session) (err error) {
		applied, failed, err = tx.credentials().applyAccountChanges(ctx, limit, within, apply)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("taking changes of accounts: %w", err)
	}
	return applied, failed
}

func (s credentialsIn) applyAccountChanges(ctx context.Context, limit int, within time.Duration, apply ApplyAccount) (applied int, failed, err error) {
	// First: who waits for its turn must not hold rows meanwhile.
	if err := s.lockAccounts(ctx); err != nil {
		return 0, nil, err
	}
	changes, err := collect(ctx, s.session, func(c *AccountChange) []any { return []any{&c.Device, &c.Wanted} },
		`SELECT t.device, t.wanted FROM account_changes t WHERE t.changed_at <= (SELECT {now})
		ORDER BY t.stage <> 0, t.changed_at, t.device LIMIT $1 {skip t}`, limit)
	if err != nil {
		return 0, nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for _, c := range changes {
		if failed := apply(bounded, c); failed != nil {
			_, err := s.exec(ctx, `UPDATE account_changes SET changed_at = {now} WHERE device = $1`, c.Device)
			return applied, fmt.Errorf("account of %s, to be %s: %w", c.Device, c.Wanted, failed), err
		}
		if err := s.dropAccountChange(ctx, c.Device); err != nil {
			return 0, nil, err
		}
		applied++
	}
	return applied, nil, nil
}

// noteAccount notes the state that the device's account has to follow.
func (s credentialsIn) noteAccount(ctx context.Context, device string, wanted AccountState) error {
	if !s.accounts {
		return nil
	}
	_, err := s.exec(ctx, `
		INSERT INTO account_changes (device, wanted, changed_at) VALUES ($1, $2, {now})
		ON CONFLICT (device) DO UPDATE SET wanted = excluded.wanted, changed_at = excluded.changed_at, stage = 0`, device, string(wanted))
	return err
}

func (s credentialsIn) dropAccountChange(ctx context.Context, device string) error {
	_, err := s.exec(ctx, `DELETE FROM account_changes WHERE device = $1`, device)
	return err
}

// setAccount calls set with the state of the device, whose row is locked. What
// was noted before is obsolete: a late deletion would hit the new account.
func (s credentialsIn) setAccount(ctx context.Context, device string, set SetAccount) error {
	if set == nil {
		return nil
	}
	// First: an import notes accounts, and makes them, in turn as well.
	if err := s.lockAccounts(ctx); err != nil {
		return err
	}
	if err := s.dropAccountChange(ctx, device); err != nil {
		return err
	}
	enabled, err := one(ctx, s.session, only[bool], `SELECT blocked IS FALSE FROM devices WHERE id = $1`, device)
	if err != nil {
		return err
	}
	return set(ctx, enabled)
}

// lockAccounts lets one transaction at a time talk to the broker, until it ends.
func (s credentialsIn) lockAccounts(ctx context.Context) error {
	if s.lockAlone == "" {
		return nil
	}
	if _, err := s.exec(ctx, s.lockAlone, accountLock); err != nil {
		return fmt.Errorf("waiting for the turn at the broker: %w", err)
	}
	return nil
}
