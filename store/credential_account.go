package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// AccountState is the state that a device's account at the MQTT broker must have.
type AccountState string

// The states of an account.
const (
	AccountEnabled  AccountState = "enabled"
	AccountDisabled AccountState = "disabled"
	AccountDeleted  AccountState = "deleted"
)

// AccountChange is a change of a device that has not been applied to its account at the MQTT broker yet.
type AccountChange struct {
	Device string
	Wanted AccountState
}

// SetAccount sets the secret that the store is writing as the password of a device's account at the MQTT broker. The store calls it last
// before the COMMIT, and an error rolls the transaction back. All replicas together run one call at a time, so it must return within
// seconds. enabled is false for a blocked device. A nil SetAccount means that the broker has no accounts.
type SetAccount func(ctx context.Context, enabled bool) error

// ApplyAccount applies a change of a device to its account at the broker.
type ApplyAccount func(context.Context, AccountChange) error

// accountLock is the name of the lock under which SetAccount and account changes run. No pool can have this name.
const accountLock = "$accounts"

// RecordAccountChanges makes the store record the AccountChange of each changed device. Call it before the first use of the store.
func (s credentials) RecordAccountChanges() { s.recordsAccountChanges = true }

// ApplyAccountChanges calls apply for at most limit due changes, oldest first, and deletes the applied changes. Changes that a failed
// import left (Stage) come last. At the first error of apply it stops, and moves the failed change behind the other changes. A change may
// be applied more than once. Replicas may call ApplyAccountChanges concurrently. The context of apply ends applyTimeout after the first
// call, because other changes of the devices wait meanwhile.
func (s credentials) ApplyAccountChanges(ctx context.Context, limit int, applyTimeout time.Duration, apply ApplyAccount) (applied int, err error) {
	waiting, err := queryOne(ctx, s.readSession(), singleColumn[bool], `SELECT EXISTS (SELECT 1 FROM account_changes WHERE changed_at <= (SELECT {now}))`)
	if err != nil || !waiting {
		return 0, err
	}
	var applyErr error
	err = s.write(ctx, func(tx session) (err error) {
		applied, applyErr, err = tx.applyAccountChanges(ctx, limit, applyTimeout, apply)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("applying changes of accounts: %w", err)
	}
	return applied, applyErr
}

// SuspendAccount disables the account of a device at the MQTT broker for the duration. It first commits a change that later enables the
// account again, even if this replica fails. Then it calls disable, which disables the account. If the account is already suspended, the
// duration begins again. isSuspended is false, and nothing changes, if the device is blocked or not registered, or another change of its
// account is due.
func (s credentials) SuspendAccount(ctx context.Context, device string, duration time.Duration, disable func(context.Context) error) (isSuspended bool, err error) {
	var recorded int64
	err = s.write(ctx, func(tx session) (err error) {
		recorded, err = tx.exec(ctx, `
			INSERT INTO account_changes (device, wanted, changed_at) SELECT id, 'enabled', {now} + $2 * {ms} FROM devices WHERE id = $1 AND blocked IS FALSE
			ON CONFLICT (device) DO UPDATE SET changed_at = excluded.changed_at
				WHERE account_changes.wanted = 'enabled' AND account_changes.stage = 0 AND account_changes.changed_at > {now}`, device, duration.Milliseconds())
		return err
	})
	if err == nil && recorded > 0 {
		err = s.write(ctx, func(tx session) error {
			if err := tx.lockAccounts(ctx); err != nil {
				return err
			}
			// The lock of the row makes a later change of the account wait until the account is disabled.
			_, err := queryOne(ctx, tx, singleColumn[string], `SELECT device FROM account_changes WHERE device = $1 AND wanted = 'enabled' AND changed_at > {now} FOR UPDATE`, device)
			if errors.Is(err, ErrNotFound) { // an operator changed the account in the meantime
				recorded = 0
				return nil
			}
			if err != nil {
				return err
			}
			return disable(ctx)
		})
	}
	if err != nil {
		return false, fmt.Errorf("suspending the account of %s: %w", device, err)
	}
	return recorded > 0, nil
}

// applyAccountChanges does the work of ApplyAccountChanges in one transaction. applyErr is an error of apply, which does not prevent the COMMIT.
func (s session) applyAccountChanges(ctx context.Context, limit int, applyTimeout time.Duration, apply ApplyAccount) (applied int, applyErr, err error) {
	// Take the lock of the accounts before all row locks: a transaction that waits for this lock must not hold row locks.
	if err := s.lockAccounts(ctx); err != nil {
		return 0, nil, err
	}
	changes, err := collect(ctx, s, func(c *AccountChange) []any { return []any{&c.Device, &c.Wanted} },
		`SELECT t.device, t.wanted FROM account_changes t WHERE t.changed_at <= (SELECT {now})
		ORDER BY t.stage <> 0, t.changed_at, t.device LIMIT $1 FOR UPDATE OF t SKIP LOCKED`, limit)
	if err != nil {
		return 0, nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	for _, c := range changes {
		if failed := apply(bounded, c); failed != nil {
			_, err := s.exec(ctx, `UPDATE account_changes SET changed_at = {now} WHERE device = $1`, c.Device)
			return applied, fmt.Errorf("changing the account of %s to %s: %w", c.Device, c.Wanted, failed), err
		}
		if err := s.dropAccountChange(ctx, c.Device); err != nil {
			return 0, nil, err
		}
		applied++
	}
	return applied, nil, nil
}

// recordAccountChanges records for each device that its account must get the state wanted.
func (s session) recordAccountChanges(ctx context.Context, wanted AccountState, devices []string) error {
	if !s.recordsAccountChanges {
		return nil
	}
	_, err := s.exec(ctx, `
		INSERT INTO account_changes (device, wanted, changed_at) SELECT name, $2, {now} FROM {names} WHERE TRUE ORDER BY n
		ON CONFLICT (device) DO UPDATE SET wanted = excluded.wanted, changed_at = excluded.changed_at, stage = 0`, namesToJSONArray(devices), string(wanted))
	return err
}

func (s session) dropAccountChange(ctx context.Context, device string) error {
	_, err := s.exec(ctx, `DELETE FROM account_changes WHERE device = $1`, device)
	return err
}

// setBrokerAccount calls setAccount for the device, if setAccount is not nil. The row of the device must be locked. Before the call, it
// deletes the row of the device in account_changes, because this older change could remove the new account later.
func (s session) setBrokerAccount(ctx context.Context, device string, setAccount SetAccount) error {
	if setAccount == nil {
		return nil
	}
	// Take the lock first, because an import also records and creates accounts under this lock.
	if err := s.lockAccounts(ctx); err != nil {
		return err
	}
	if err := s.dropAccountChange(ctx, device); err != nil {
		return err
	}
	enabled, err := queryOne(ctx, s, singleColumn[bool], `SELECT blocked IS FALSE FROM devices WHERE id = $1`, device)
	if err != nil {
		return err
	}
	return setAccount(ctx, enabled)
}

// lockAccounts takes the lock for changes of accounts at the MQTT broker until the transaction ends, so that one transaction at a time
// changes them.
func (s session) lockAccounts(ctx context.Context) error {
	if s.lockExclusive == "" {
		return nil
	}
	if _, err := s.exec(ctx, s.lockExclusive, accountLock); err != nil {
		return fmt.Errorf("waiting for other changes at the broker: %w", err)
	}
	return nil
}
