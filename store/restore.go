package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

const (
	// leapAhead is how far numbers jump that the lost part of the ledger gave
	// out already. It is more than a busy installation grants in months, and
	// leaves room for 900,000 restores below maxNumber.
	leapAhead = 10_000_000_000
	// maxNumber is the largest number that is the same in every reader of JSON.
	maxNumber = 1<<53 - 1
	// leastStandstill is the shortest time without grants after a restore: the
	// default lease, which the lost part of the ledger may have given.
	leastStandstill = 300 * time.Second
)

// errUsedUp: so many restores that the next numbers would be too large.
var errUsedUp = errors.New("the numbers of tokens, tasks, batches or events are used up")

// granting is the condition that grants of pool p may be given at all. It is not so after
// a restore: see AfterRestore.
const granting = `(p.stands_until IS NULL OR p.stands_until <= {now})`

// Standstill is the summary of the pools that grant nothing after a restore, by the database's
// clock. If Pools is 0, every pool may grant.
type Standstill struct {
	Pools       int
	First, Last time.Time // when the first and when the last of these pools may grant again
}

// String returns the text of the event ledger.restored.
func (s Standstill) String() string {
	text := "nothing is granted until " + s.First.UTC().Format(time.RFC3339)
	if s.Last.After(s.First) {
		text += ", and in the last of " + strconv.Itoa(s.Pools) + " pools until " + s.Last.UTC().Format(time.RFC3339)
	}
	return text
}

// AfterRestore is to be called once when the ledger has lost commits: it was
// restored from a backup, or fell back to a standby that lacked some. The lost
// part may have granted slots whose holders are still inside, so each pool grants nothing, at
// any replica, for the longest lease that the ledger knows of it, and at least for least and
// 300 s. AfterRestore returns when the last pool goes on, by the database's clock. Called again, the
// time starts anew.
//
// The lost part may also have leased slots to callers for as long as a caller may ask. So a pool
// that a caller's token may use, or that has had leases of callers, waits for that length, too.
//
// Numbers that the lost part gave out must not come again: tokens and the numbers of
// tasks, batches and events go on far ahead, and so do the versions of all pools, for the semaphore may know
// a later one than the ledger. Replicas forget the tokens that they remember.
func (s *Store) AfterRestore(ctx context.Context, actor string, least time.Duration) (until time.Time, err error) {
	err = s.write(ctx, func(tx session) error {
		until, err = tx.afterRestore(ctx, actor, max(least, leastStandstill))
		return err
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("preparing the ledger after a restore: %w", err)
	}
	return until, nil
}

func (s session) afterRestore(ctx context.Context, actor string, least time.Duration) (until time.Time, err error) {
	if s.lockGrants != "" { // claims under way commit before, and others see what is written here
		if _, err := s.exec(ctx, s.lockGrants); err != nil {
			return until, fmt.Errorf("waiting for claims under way: %w", err)
		}
	}
	for _, leap := range s.leaps {
		reached, err := one(ctx, s, only[int64], leap, int64(leapAhead))
		if err != nil && !errors.Is(err, ErrNotFound) { // no row: that number was never given out
			return until, fmt.Errorf("leaping ahead: %w", err)
		}
		if reached > maxNumber-leapAhead {
			return until, errUsedUp
		}
	}
	if _, err := s.exec(ctx, `UPDATE pools SET version = version + $1, updated_at = {now}`, int64(leapAhead)); err != nil {
		return until, fmt.Errorf("raising the versions of pools: %w", err)
	}
	if _, err := s.exec(ctx, `INSERT INTO token_changes (hash) VALUES ('')`); err != nil {
		return until, fmt.Errorf("letting replicas forget tokens: %w", err)
	}
	s.telling.everything()
	stands, err := s.standStill(ctx, least)
	if err != nil {
		return until, err
	}
	return stands.Last, s.record(ctx, Event{Kind: "ledger.restored", Actor: actor, Detail: stands.String()})
}

// standStill writes for each pool until when nothing is granted. An earlier restore may
// reach further. A pool that was deleted before the backup may have been there again since.
func (s session) standStill(ctx context.Context, least time.Duration) (stands Standstill, err error) {
	now, err := s.pools().now(ctx)
	if err != nil {
		return stands, err
	}
	until := now.Add(least)
	if _, err := s.exec(ctx, `INSERT INTO restores (at, until) VALUES ({epoch} + $1 * {ms}, {epoch} + $2 * {ms})`, now.UnixMilli(), until.UnixMilli()); err != nil {
		return stands, fmt.Errorf("recording the restore: %w", err)
	}
	used, err := s.usedByCallers(ctx)
	if err != nil {
		return stands, err
	}
	_, err = s.exec(ctx, `
		UPDATE pools AS p SET stands_until = {greatest}(coalesce(p.stands_until, {epoch}),
			{epoch} + (CAST($2 AS bigint) + {greatest}(CAST($3 AS bigint), p.lease_ms,
				CASE WHEN p.name IN (SELECT name FROM {names}) OR EXISTS (SELECT 1 FROM batches b WHERE b.pool = p.name AND b.system) THEN p.longest_ms ELSE 0 END,
				coalesce((SELECT max(`+longestLease+`) FROM grants g WHERE g.pool = p.name), 0),
				coalesce((SELECT max(b.lease_ms) FROM batches b WHERE b.pool = p.name AND b.lease_ms > 0
					AND EXISTS (SELECT 1 FROM tasks t WHERE t.batch = b.id AND t.state = 'pending')), 0),
				coalesce((SELECT max(t.lease_ms) FROM tasks t WHERE t.pool = p.name AND t.state = 'pending' AND t.device >= '@' AND t.device < 'A'), 0)
			)) * {ms})`, names(used), now.UnixMilli(), least.Milliseconds())
	if err != nil {
		return stands, fmt.Errorf("writing until when the pools stand still: %w", err)
	}
	stands, err = s.standstill(ctx)
	if stands.Pools == 0 {
		stands.First, stands.Last = until, until
	}
	return stands, err
}

// usedByCallers returns the pools that the token of a caller may use. A token that has expired by now may
// have been valid after the backup.
func (s session) usedByCallers(ctx context.Context) ([]string, error) {
	patterns, err := collect(ctx, s, func(list *[]string) []any { return []any{fromJSON(list)} },
		`SELECT pools FROM tokens WHERE device = '' AND revoked_at IS NULL AND pools IS NOT NULL`)
	if err != nil {
		return nil, fmt.Errorf("reading the tokens of callers: %w", err)
	}
	all, err := collect(ctx, s, only[string], `SELECT name FROM pools`)
	if err != nil {
		return nil, fmt.Errorf("reading the pools: %w", err)
	}
	covering := slices.Concat(patterns...)
	slices.Sort(covering)
	covering = slices.Compact(covering)
	return slices.DeleteFunc(all, func(pool string) bool { return !Covers(covering, pool) }), nil
}

// Standstill reads where nothing is granted after a restore, and until when.
func (s *Store) Standstill(ctx context.Context) (Standstill, error) { return s.read().standstill(ctx) }

func (s session) standstill(ctx context.Context) (Standstill, error) {
	return one(ctx, s, func(r *Standstill) []any { return []any{&r.Pools, instant{&r.First}, instant{&r.Last}} },
		`SELECT count(*), min(stands_until), max(stands_until) FROM pools WHERE stands_until > {now} AND deleted_at IS NULL`)
}
