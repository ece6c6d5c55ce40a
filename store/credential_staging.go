package store

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"
)

// Stage identifies the accounts that one import creates at the MQTT broker before the ledger has the devices. A Stage of 0 means that there are
// no such accounts.
//
// Before the broker gets an account, the ledger commits a note: a row of account_changes by which the account is deleted when the note is
// due. While the import runs, it postpones the due time of the note. The transaction that registers the devices also deletes the notes, so a
// note that remains means that the import was not committed. Until a note is due, no other import can create the account of the note. A request
// that creates a single account deletes the note of this account. All these changes are made under lockAccounts.
type Stage int64

// NewStage returns a random Stage. If once is not nil, all stages with the same idempotency key have the same upper half.
func NewStage(once *Once) Stage {
	upper := rand.Uint32()
	if once != nil {
		sum := fnv.New32a()
		_, _ = fmt.Fprint(sum, once.Owner, " ", once.Key) // writing to a hash never fails
		upper = sum.Sum32()
	}
	return Stage(int64(upper)<<31 | (1 + rand.Int64N(1<<31-1)))
}

func (s Stage) hasSameKey(other Stage) bool { return s>>31 == other>>31 }

// StagedDevice is a device of an import whose account must be created.
type StagedDevice struct {
	Entry   int  // index in the list of the import, from 0
	Enabled bool // false if the device was deleted while it was blocked: it is registered again as blocked
}

// MaxStagedAccounts is the maximum number of accounts that one import creates. Mosquitto 2.0 writes all accounts twice for each new one.
const MaxStagedAccounts = 1000

// ErrTooManyAccounts means that an import would create more than MaxStagedAccounts accounts. The whole import is refused.
var ErrTooManyAccounts = fmt.Errorf("at most %d new devices in an import while the MQTT broker keeps an account for each", MaxStagedAccounts)

// ErrAccountConflict means that another request is creating or deleting one of the accounts, or has done so.
var ErrAccountConflict = errors.New("another request creates or deletes one of the accounts")

// StageAccounts writes a note (see Stage) for each of newDevices that is not registered, and returns these devices. A note is due after
// noteDueAfter unless ImportDevices deletes it. StageAccounts refuses everything that ImportDevices would refuse. It returns no devices if
// the request was answered before (WithOnce), or if onExisting is RefuseExisting and a device is registered. Errors: EntryError with
// ErrTooManyAccounts, ErrAccountConflict, ErrInProgress.
func (s credentials) StageAccounts(ctx context.Context, stage Stage, newDevices []NewDevice, onExisting OnExisting, noteDueAfter time.Duration) (staged []StagedDevice, err error) {
	err = s.write(ctx, func(tx session) (err error) {
		var total int
		replayed, err := tx.lookUpAnswer(ctx, &total)
		if err != nil || replayed {
			return err
		}
		// Take locks in the same order as ImportDevices: first the locks of the check, then the lock of the accounts.
		if err := tx.checkImport(ctx, newDevices, onExisting); err != nil {
			return err
		}
		staged, err = tx.stageAccounts(ctx, stage, newDevices, onExisting, noteDueAfter)
		return err
	})
	return staged, err
}

func (s session) stageAccounts(ctx context.Context, stage Stage, newDevices []NewDevice, onExisting OnExisting, noteDueAfter time.Duration) (staged []StagedDevice, err error) {
	if err := s.lockAccounts(ctx); err != nil {
		return nil, err
	}
	ids := make([]string, len(newDevices))
	for i, d := range newDevices {
		ids[i] = d.ID
	}
	staged, err = collect(ctx, s, func(s *StagedDevice) []any { return []any{&s.Entry, &s.Enabled} }, `
		SELECT n, NOT EXISTS (SELECT 1 FROM deleted_devices g WHERE g.id = names.name AND g.blocked)
		FROM {names} WHERE NOT EXISTS (SELECT 1 FROM devices d WHERE d.id = names.name) ORDER BY n`, namesToJSONArray(ids))
	if err != nil || len(staged) == 0 || onExisting == RefuseExisting && len(staged) < len(ids) {
		return nil, err
	}
	if len(staged) > MaxStagedAccounts {
		return nil, &EntryError{staged[MaxStagedAccounts].Entry, ErrTooManyAccounts}
	}
	fresh := make([]string, len(staged))
	for i, d := range staged {
		fresh[i] = ids[d.Entry]
	}
	return staged, s.recordStageNotes(ctx, stage, fresh, noteDueAfter)
}

// recordStageNotes writes a note (see Stage) for each device in newIDs, and replaces the notes of failed imports. It refuses an account
// that another import creates. It also refuses an account that is still to be deleted at the broker, because the session of the account
// would stay open.
func (s session) recordStageNotes(ctx context.Context, stage Stage, newIDs []string, noteDueAfter time.Duration) error {
	others, err := collect(ctx, s, singleColumn[Stage], `
		SELECT DISTINCT c.stage FROM {names} JOIN account_changes c ON c.device = names.name
		WHERE c.stage = 0 OR c.changed_at > {now}`, namesToJSONArray(newIDs))
	switch {
	case err != nil:
		return err
	case slices.ContainsFunc(others, stage.hasSameKey):
		return ErrInProgress
	case len(others) > 0:
		return ErrAccountConflict
	}
	_, err = s.exec(ctx, `
		INSERT INTO account_changes (device, wanted, changed_at, stage)
		SELECT name, 'deleted', {now} + $3 * {ms}, $2 FROM {names} WHERE TRUE ORDER BY name
		ON CONFLICT (device) DO UPDATE SET wanted = excluded.wanted, changed_at = excluded.changed_at, stage = excluded.stage`,
		namesToJSONArray(newIDs), stage, noteDueAfter.Milliseconds())
	return err
}

// SetStagedAccounts calls setAccounts, which must create accounts of the stage at the MQTT broker within a few seconds. The
// stage has a note for each account, and SetStagedAccounts sets the due time of these notes to about noteDueAfter from now. devices are all devices of the stage. SetStagedAccounts returns
// ErrAccountConflict if a note is missing or due.
func (s credentials) SetStagedAccounts(ctx context.Context, stage Stage, devices []string, noteDueAfter time.Duration, setAccounts func(context.Context) error) error {
	return s.write(ctx, func(tx session) error {
		if err := tx.lockAccounts(ctx); err != nil {
			return err
		}
		n, err := queryOne(ctx, tx, singleColumn[int], `SELECT count(*) FROM {names} JOIN account_changes c ON c.device = names.name WHERE c.stage = $2 AND c.changed_at > {now}`, namesToJSONArray(devices), stage)
		if err != nil {
			return err
		}
		if n < len(devices) {
			return ErrAccountConflict
		}
		// The due time is moved only if less than two thirds of noteDueAfter are left, so that the many calls of one import seldom write it.
		if _, err := tx.exec(ctx, `
			UPDATE account_changes SET changed_at = {now} + $3 * {ms}
			WHERE device IN (SELECT name FROM {names}) AND stage = $2 AND changed_at < {now} + $4 * {ms}`,
			namesToJSONArray(devices), stage, noteDueAfter.Milliseconds(), (noteDueAfter * 2 / 3).Milliseconds()); err != nil {
			return err
		}
		return setAccounts(ctx)
	})
}

// keepStagedAccounts keeps the broker accounts that the import stage created for these devices: it deletes their notes (see Stage). It returns
// ErrAccountConflict if a note is missing.
func (s session) keepStagedAccounts(ctx context.Context, stage Stage, devices []string) error {
	if stage == 0 || len(devices) == 0 {
		return nil
	}
	// The import has spent minutes on its accounts, so it may wait for the lock up to the statement timeout.
	if s.disableLockTimeout != "" {
		if _, err := s.exec(ctx, s.disableLockTimeout); err != nil {
			return err
		}
	}
	if err := s.lockAccounts(ctx); err != nil {
		return err
	}
	n, err := s.exec(ctx, `DELETE FROM account_changes WHERE device IN (SELECT name FROM {names}) AND stage = $2`, namesToJSONArray(devices), stage)
	if err == nil && n < int64(len(devices)) {
		err = ErrAccountConflict
	}
	return err
}

// DropStage makes the notes of the stage due now, so the accounts that still have a note are deleted soon. devices are all devices of the
// stage.
func (s credentials) DropStage(ctx context.Context, stage Stage, devices []string) error {
	_, err := s.execInTx(ctx, `UPDATE account_changes SET changed_at = {now} WHERE device IN (SELECT name FROM {names}) AND stage = $2`, namesToJSONArray(devices), stage)
	return err
}
