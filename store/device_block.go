package store

import "context"

// SetBlocked blocks or unblocks a device. Blocking also asks the device to stop its running task. It returns ErrNotFound if the device is
// not registered.
func (s devices) SetBlocked(ctx context.Context, actor, id string, blocked bool) error {
	return s.write(ctx, func(tx session) error {
		if _, err := tx.devices().byID(ctx, id); err != nil {
			return err
		}
		changed, err := tx.devices().setBlocked(ctx, actor, []string{id}, blocked, false)
		if err != nil || changed > 0 {
			return err
		}
		// The change of the account is recorded even if the device is already blocked or unblocked. So an operator can repeat the request
		// to repair an account that somebody changed at the broker.
		return tx.credentials().recordAccountChanges(ctx, accountStateOf(blocked), []string{id})
	})
}

// SetAllBlocked blocks or unblocks the registered devices in ids, in one transaction, and returns how many devices it changed. If dryRun is
// true, it changes nothing and returns how many devices it would change.
func (s devices) SetAllBlocked(ctx context.Context, actor string, ids []string, blocked, dryRun bool) (changed int, err error) {
	err = s.write(ctx, func(tx session) (err error) {
		changed, err = tx.devices().setBlocked(ctx, actor, ids, blocked, dryRun)
		return err
	})
	return changed, err
}

// setBlocked does the work of SetAllBlocked in one transaction.
func (s devicesIn) setBlocked(ctx context.Context, actor string, ids []string, blocked, dryRun bool) (changed int, err error) {
	ids, err = collect(ctx, s.session, singleColumn[string],
		`SELECT id FROM devices WHERE id IN (SELECT name FROM {names}) AND blocked <> $2 ORDER BY id {lock}`, namesInput(ids), blocked)
	if err != nil || dryRun || len(ids) == 0 {
		return len(ids), err
	}
	kind := "device.unblocked"
	steps := []step{{"unblocking", `UPDATE devices SET blocked = FALSE WHERE id IN (SELECT name FROM {names})`}}
	if blocked {
		kind = "device.blocked"
		steps = []step{
			{"blocking", `UPDATE devices SET blocked = TRUE WHERE id IN (SELECT name FROM {names})`},
			{"stopping tasks", `UPDATE grants SET cancel_why = 'blocked' WHERE cancel_why = '' AND device IN (SELECT name FROM {names})`},
		}
	}
	if err := s.runSteps(ctx, "names", namesInput(ids), steps); err != nil {
		return 0, err
	}
	if err := s.credentials().recordAccountChanges(ctx, accountStateOf(blocked), ids); err != nil {
		return 0, err
	}
	s.pendingNews.addDevices(ids...)
	_, err = s.exec(ctx, `
		INSERT INTO events (at, kind, actor, actor_kind, device) SELECT {now}, $2, $3, 'operator', name FROM {names} WHERE TRUE ORDER BY n`, namesInput(ids), kind, actor)
	return len(ids), err
}

// accountStateOf returns the state that the account of a device must have. blocked says whether the device is blocked.
func accountStateOf(blocked bool) AccountState {
	if blocked {
		return AccountDisabled
	}
	return AccountEnabled
}
