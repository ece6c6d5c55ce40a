package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Stage names the accounts that an import makes at the broker before the ledger has their
// devices; 0: there are no accounts.
//
// Before the broker hears of such an account, a note is committed that it is to be deleted,
// with the stage, due later. The import takes the notes away in its own transaction. So the
// notes alone tell what became of the import: they are there unless it was committed, also
// where the answer to the COMMIT was lost or the process died. Whoever else makes the account
// takes the note, too; all of this happens in turn (lockAccounts).
type Stage int64

// NewStage is one that nobody else has.
func NewStage() Stage { return Stage(1 + rand.Int64N(1<<62)) }

// Staged is a device of a list whose account is to be made.
type Staged struct {
	Entry   int  // of the list, from 0
	Enabled bool // not if it was deleted while it was blocked: it comes back blocked
}

// MostStaged is how many accounts an import makes. The broker of mosquitto 2.0 writes all
// accounts twice for each.
const MostStaged = 1000

// ErrTooManyAccounts refuses an entry, and with it the import.
var ErrTooManyAccounts = fmt.Errorf("at most %d new devices in an import while the MQTT broker keeps an account for each", MostStaged)

// ErrOvertaken: somebody else made, or is about to make, one of these accounts.
var ErrOvertaken = errors.New("another request makes one of the accounts")

// StageAccounts notes the accounts of those devices that are not registered, and returns
// these devices; none, if existing lets no import pass that has a registered one. After kept
// they are deleted, unless ImportDevices kept them. An EntryError with ErrTooManyAccounts
// names the first that is too many.
func (s credentials) StageAccounts(ctx context.Context, stage Stage, ids []string, existing Existing, kept time.Duration) (staged []Staged, err error) {
	err = s.write(ctx, func(tx session) (err error) {
		if err := tx.credentials().lockAccounts(ctx); err != nil {
			return err
		}
		staged, err = collect(ctx, tx, func(s *Staged) []any { return []any{&s.Entry, &s.Enabled} }, `
			SELECT n, NOT EXISTS (SELECT 1 FROM deleted_devices g WHERE g.id = names.name AND g.blocked)
			FROM {names} WHERE NOT EXISTS (SELECT 1 FROM devices d WHERE d.id = names.name) ORDER BY n`, names(ids))
		if err != nil {
			return err
		}
		if existing == RefuseExisting && len(staged) < len(ids) {
			staged = nil
		}
		if len(staged) > MostStaged {
			return &EntryError{staged[MostStaged].Entry, ErrTooManyAccounts}
		}
		return tx.credentials().noteStage(ctx, stage, staged, ids, kept)
	})
	return staged, err
}

func (s credentialsIn) noteStage(ctx context.Context, stage Stage, staged []Staged, ids []string, kept time.Duration) error {
	if len(staged) == 0 {
		return nil
	}
	fresh := make([]string, len(staged))
	for i, d := range staged {
		fresh[i] = ids[d.Entry]
	}
	_, err := s.exec(ctx, `
		INSERT INTO account_changes (device, wanted, changed_at, stage)
		SELECT name, 'deleted', {now} + $3 * {ms}, $2 FROM {names} WHERE TRUE ORDER BY name
		ON CONFLICT (device) DO UPDATE SET wanted = excluded.wanted, changed_at = excluded.changed_at, stage = excluded.stage`,
		names(fresh), stage, kept.Milliseconds())
	return err
}

// SetStaged calls set, which makes the accounts of these devices, while nobody else makes
// any. It must be bounded to a few seconds. ErrOvertaken.
func (s credentials) SetStaged(ctx context.Context, stage Stage, ids []string, set func(context.Context) error) error {
	return s.write(ctx, func(tx session) error {
		if err := tx.credentials().lockAccounts(ctx); err != nil {
			return err
		}
		n, err := one(ctx, tx, only[int], `SELECT count(*) FROM {names} JOIN account_changes c ON c.device = names.name WHERE c.stage = $2`, names(ids), stage)
		if err != nil {
			return err
		}
		if n < len(ids) {
			return ErrOvertaken
		}
		return set(ctx)
	})
}

// keepStaged lets the accounts of these devices stay, once this is committed. ErrOvertaken.
func (s credentialsIn) keepStaged(ctx context.Context, stage Stage, ids []string) error {
	if stage == 0 || len(ids) == 0 {
		return nil
	}
	if err := s.lockAccounts(ctx); err != nil {
		return err
	}
	n, err := s.exec(ctx, `DELETE FROM account_changes WHERE device IN (SELECT name FROM {names}) AND stage = $2`, names(ids), stage)
	if err == nil && n < int64(len(ids)) {
		err = ErrOvertaken
	}
	return err
}

// DropStage lets those accounts of the stage be deleted now that were not kept.
func (s credentials) DropStage(ctx context.Context, stage Stage, ids []string) error {
	return s.write(ctx, func(tx session) error {
		_, err := tx.exec(ctx, `UPDATE account_changes SET changed_at = {now} WHERE device IN (SELECT name FROM {names}) AND stage = $2`, names(ids), stage)
		return err
	})
}
