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

// Stage names the accounts that an import makes at the broker before the ledger has their
// devices; 0: there are no accounts.
//
// Before the broker hears of such an account, a note is committed that it is to be deleted,
// with the stage, due later; it is put off while the import makes its accounts. The import
// takes the notes away in its own transaction. So the notes alone tell what became of the
// import: they are there unless it was committed, also where the answer to the COMMIT was
// lost or the process died. An import whose notes are not due keeps others away. A request
// that makes one account takes its note, too; all of this happens in turn (lockAccounts).
type Stage int64

// NewStage is one that nobody else has. Those of an idempotency key have the same upper half.
func NewStage(once *Once) Stage {
	upper := rand.Uint32()
	if once != nil {
		sum := fnv.New32a()
		_, _ = fmt.Fprint(sum, once.Owner, " ", once.Key) // a hash takes all
		upper = sum.Sum32()
	}
	return Stage(int64(upper)<<31 | (1 + rand.Int64N(1<<31-1)))
}

// sameKey: both are of one idempotency key.
func (s Stage) sameKey(other Stage) bool { return s>>31 == other>>31 }

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

// ErrOvertaken: somebody else made or deleted, or is about to, one of these accounts.
var ErrOvertaken = errors.New("another request makes or deletes one of the accounts")

// StageAccounts notes the accounts of those devices that are not registered, and returns
// these devices; none, if existing lets no import pass that has a registered one. After kept
// they are deleted, unless ImportDevices kept them. What ImportDevices would refuse is refused
// here, before the accounts are made; a replay has none to make. An EntryError with
// ErrTooManyAccounts names the first that is too many. ErrOvertaken; ErrInProgress.
func (s credentials) StageAccounts(ctx context.Context, stage Stage, list []NewDevice, existing Existing, kept time.Duration) (staged []Staged, err error) {
	err = s.write(ctx, func(tx session) (err error) {
		var total int
		replayed, err := tx.answered(ctx, &total)
		if err != nil || replayed {
			return err
		}
		// First, as in ImportDevices: its locks, then the turn.
		if err := tx.devices().checkImport(ctx, list, existing); err != nil {
			return err
		}
		staged, err = tx.credentials().stage(ctx, stage, list, existing, kept)
		return err
	})
	return staged, err
}

func (s credentialsIn) stage(ctx context.Context, stage Stage, list []NewDevice, existing Existing, kept time.Duration) (staged []Staged, err error) {
	if err := s.lockAccounts(ctx); err != nil {
		return nil, err
	}
	ids := make([]string, len(list))
	for i, d := range list {
		ids[i] = d.ID
	}
	staged, err = collect(ctx, s.session, func(s *Staged) []any { return []any{&s.Entry, &s.Enabled} }, `
		SELECT n, NOT EXISTS (SELECT 1 FROM deleted_devices g WHERE g.id = names.name AND g.blocked)
		FROM {names} WHERE NOT EXISTS (SELECT 1 FROM devices d WHERE d.id = names.name) ORDER BY n`, names(ids))
	if err != nil || len(staged) == 0 || existing == RefuseExisting && len(staged) < len(ids) {
		return nil, err
	}
	if len(staged) > MostStaged {
		return nil, &EntryError{staged[MostStaged].Entry, ErrTooManyAccounts}
	}
	fresh := make([]string, len(staged))
	for i, d := range staged {
		fresh[i] = ids[d.Entry]
	}
	return staged, s.noteStage(ctx, stage, fresh, kept)
}

// noteStage takes over what an import left behind, and neither what one is about to make nor
// the account of a device that was deleted: nobody would end its session meanwhile.
func (s credentialsIn) noteStage(ctx context.Context, stage Stage, fresh []string, kept time.Duration) error {
	others, err := collect(ctx, s.session, only[Stage], `
		SELECT DISTINCT c.stage FROM {names} JOIN account_changes c ON c.device = names.name
		WHERE c.stage = 0 OR c.changed_at > {now}`, names(fresh))
	switch {
	case err != nil:
		return err
	case slices.ContainsFunc(others, stage.sameKey):
		return ErrInProgress
	case len(others) > 0:
		return ErrOvertaken
	}
	_, err = s.exec(ctx, `
		INSERT INTO account_changes (device, wanted, changed_at, stage)
		SELECT name, 'deleted', {now} + $3 * {ms}, $2 FROM {names} WHERE TRUE ORDER BY name
		ON CONFLICT (device) DO UPDATE SET wanted = excluded.wanted, changed_at = excluded.changed_at, stage = excluded.stage`,
		names(fresh), stage, kept.Milliseconds())
	return err
}

// SetStaged calls set, which makes accounts of the stage, while nobody else makes any. It
// must be bounded to a few seconds. All accounts of the stage, which are those of ids, are
// then kept for about as long again. ErrOvertaken, also when they were kept for long enough.
func (s credentials) SetStaged(ctx context.Context, stage Stage, ids []string, kept time.Duration, set func(context.Context) error) error {
	return s.write(ctx, func(tx session) error {
		if err := tx.credentials().lockAccounts(ctx); err != nil {
			return err
		}
		n, err := one(ctx, tx, only[int], `SELECT count(*) FROM {names} JOIN account_changes c ON c.device = names.name WHERE c.stage = $2 AND c.changed_at > {now}`, names(ids), stage)
		if err != nil {
			return err
		}
		if n < len(ids) {
			return ErrOvertaken
		}
		// Not with each part: there may be as many parts as accounts.
		if _, err := tx.exec(ctx, `
			UPDATE account_changes SET changed_at = {now} + $3 * {ms}
			WHERE device IN (SELECT name FROM {names}) AND stage = $2 AND changed_at < {now} + $4 * {ms}`,
			names(ids), stage, kept.Milliseconds(), (kept * 2 / 3).Milliseconds()); err != nil {
			return err
		}
		return set(ctx)
	})
}

// keepStaged lets the accounts of these devices stay, once this is committed. ErrOvertaken.
func (s credentialsIn) keepStaged(ctx context.Context, stage Stage, ids []string) error {
	if stage == 0 || len(ids) == 0 {
		return nil
	}
	// It has made its accounts for minutes: it waits as long as a statement may.
	if s.waitLocks != "" {
		if _, err := s.exec(ctx, s.waitLocks); err != nil {
			return err
		}
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
