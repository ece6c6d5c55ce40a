package store

import (
	"context"
	"fmt"
)

// SetBlocked blocks or unblocks a device. Blocking also asks the device to stop its running task. reason is shown to people; it may be
// empty. A device that is already blocked keeps its reason. SetBlocked returns ErrNotFound if the device is not registered.
func (s devices) SetBlocked(ctx context.Context, actor, id string, blocked bool, reason string) error {
	return s.write(ctx, func(tx session) error {
		if _, err := tx.devices().byID(ctx, id); err != nil {
			return err
		}
		changed, err := tx.devices().setBlocked(ctx, actor, []string{id}, blocked, reason, false)
		if err != nil || changed > 0 {
			return err
		}
		// The change of the account is recorded even if the device is already blocked or unblocked. So an operator can repeat the request
		// to repair an account that somebody changed at the broker.
		return tx.credentials().recordAccountChanges(ctx, accountStateOf(blocked), []string{id})
	})
}

// SetAllBlocked blocks or unblocks the registered devices in ids, in one transaction, and returns how many devices it changed. reason is as
// in SetBlocked. If dryRun is true, it changes nothing and returns how many devices it would change.
func (s devices) SetAllBlocked(ctx context.Context, actor string, ids []string, blocked bool, reason string, dryRun bool) (changed int, err error) {
	return inTx(ctx, s.connection, func(tx session) (int, error) {
		return tx.devices().setBlocked(ctx, actor, ids, blocked, reason, dryRun)
	})
}

// setBlocked does the work of SetAllBlocked in one transaction.
func (s devicesIn) setBlocked(ctx context.Context, actor string, ids []string, blocked bool, reason string, dryRun bool) (changed int, err error) {
	ids, err = collect(ctx, s.session, singleColumn[string],
		`SELECT id FROM devices WHERE id IN (SELECT name FROM {names}) AND blocked <> $2 ORDER BY id {lock}`, namesInput(ids), blocked)
	if err != nil || dryRun || len(ids) == 0 {
		return len(ids), err
	}
	kind, by, note := "device.unblocked", "", ""
	if blocked {
		kind, by, note = "device.blocked", actor, reason
	}
	if _, err := s.exec(ctx, `
		UPDATE devices SET blocked = $2, blocked_by = $3, blocked_at = CASE WHEN $2 THEN {now} END, block_reason = $4
		WHERE id IN (SELECT name FROM {names})`, namesInput(ids), blocked, by, note); err != nil {
		return 0, fmt.Errorf("blocking or unblocking: %w", err)
	}
	if blocked {
		if _, err := s.exec(ctx, `UPDATE grants SET cancel_why = 'blocked' WHERE cancel_why = '' AND device IN (SELECT name FROM {names})`, namesInput(ids)); err != nil {
			return 0, fmt.Errorf("stopping tasks: %w", err)
		}
	}
	if err := s.credentials().recordAccountChanges(ctx, accountStateOf(blocked), ids); err != nil {
		return 0, err
	}
	s.pendingNews.addDevices(ids...)
	_, err = s.exec(ctx, `
		INSERT INTO events (at, kind, actor, actor_kind, device, detail) SELECT {now}, $2, $3, 'operator', name, $4 FROM {names} WHERE TRUE ORDER BY n`, namesInput(ids), kind, actor, reason)
	return len(ids), err
}

// accountStateOf returns the state that the account of a device must have. blocked says whether the device is blocked.
func accountStateOf(blocked bool) AccountState {
	if blocked {
		return AccountDisabled
	}
	return AccountEnabled
}
