package store

import (
	"context"
	"errors"
	"fmt"
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
	// default lease, of which the lost part of the ledger may have given some.
	leastStandstill = 300 * time.Second
)

// errUsedUp: so many restores that the next numbers would be too large.
var errUsedUp = errors.New("the numbers of tokens, tasks, batches or events are used up")

// granting is the condition that grants may be given at all. It is not so after
// a restore: see AfterRestore.
const granting = `NOT EXISTS (SELECT 1 FROM restores r WHERE r.until > {now})`

// standstill is until when nothing is granted, as a column next to clock; NULL:
// nothing stands in the way.
const standstill = `(SELECT max(r.until) FROM restores r WHERE r.until > clock.now)`

// AfterRestore is to be called once when the ledger has lost commits: it was
// restored from a backup, or fell back to a standby that lacked some. The lost
// part may have granted slots whose devices are still inside, so nothing is
// granted, by any replica, for the longest lease that the ledger knows, and at
// least 300 s; it returns until when, by the database's clock. Called again, the
// time starts anew.
//
// Numbers that the lost part gave out must not come again: tokens and the numbers of
// tasks, batches and events go on far ahead, and so do the versions of all pools, for the semaphore may know
// a later one than the ledger. Replicas forget the tokens that they remember.
func (s *Store) AfterRestore(ctx context.Context, actor string) (until time.Time, err error) {
	err = s.write(ctx, func(tx session) error {
		until, err = tx.afterRestore(ctx, actor)
		return err
	})
	if err != nil {
		return time.Time{}, fmt.Errorf("preparing the ledger after a restore: %w", err)
	}
	return until, nil
}

func (s session) afterRestore(ctx context.Context, actor string) (until time.Time, err error) {
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
	until, err = s.standStill(ctx)
	if err != nil {
		return until, err
	}
	detail := "nothing is granted until " + until.UTC().Format(time.RFC3339)
	return until, s.record(ctx, Event{Kind: "ledger.restored", Actor: actor, Detail: detail})
}

// standStill notes that nothing is granted for the longest lease there may be:
// of a pool, of a batch with open tasks, or of a grant. An earlier restore may
// reach further.
func (s session) standStill(ctx context.Context) (until time.Time, err error) {
	_, err = s.exec(ctx, `
		INSERT INTO restores (at, until)
		SELECT clock.now, clock.now + longest.lease_ms * {ms}
		FROM (SELECT {now} AS now) AS clock CROSS JOIN (
			SELECT max(lease_ms) AS lease_ms FROM (
				SELECT CAST($1 AS bigint) AS lease_ms
				UNION ALL SELECT lease_ms FROM pools
				UNION ALL SELECT `+longestLease+` FROM grants g
				UNION ALL SELECT b.lease_ms FROM batches b
					WHERE EXISTS (SELECT 1 FROM tasks t WHERE t.batch = b.id AND t.state = 'pending')) AS leases) AS longest`, leastStandstill.Milliseconds())
	if err != nil {
		return until, fmt.Errorf("noting the restore: %w", err)
	}
	err = s.row(ctx, `SELECT max(until) FROM restores`, instant{&until})
	return until, err
}

// Standstill is until when nothing is granted after a restore, by the
// database's clock; zero: grants are given.
func (s *Store) Standstill(ctx context.Context) (until time.Time, err error) {
	err = s.read().row(ctx, `SELECT `+standstill+` FROM (SELECT {now} AS now) AS clock`, instant{&until})
	return until, err
}
