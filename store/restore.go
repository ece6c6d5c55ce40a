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
	// numberJump is the number that a restore adds to fencing tokens and ids, because the lost part of the ledger may have given higher
	// numbers. maxNumber leaves room for 900,000 restores.
	numberJump = 10_000_000_000
	// maxNumber is the largest integer that every JSON reader can represent exactly.
	maxNumber = 1<<53 - 1
	// minStandstill is the shortest standstill. It is the default length of a lease, because the lost part of the ledger may have granted such
	// leases.
	minStandstill = 300 * time.Second
)

// errUsedUp means that one more restore would raise tokens and ids above maxNumber.
var errUsedUp = errors.New("no more numbers are available for tokens, tasks, batches or events")

// poolMayGrantSQL is the condition that pool p is in no standstill (see ProtectAfterRestore).
const poolMayGrantSQL = `(p.stands_until IS NULL OR p.stands_until <= {now})`

// Standstill summarizes the pools that grant nothing after a restore, by the database's clock. If Pools is 0, every pool may grant.
type Standstill struct {
	Pools       int
	First, Last time.Time // the times at which the first and the last pool may grant again
}

// String returns s as text for the event `ledger.restored`.
func (s Standstill) String() string {
	text := "nothing is granted until " + s.First.UTC().Format(time.RFC3339)
	if s.Last.After(s.First) {
		text += ", and in the last of " + strconv.Itoa(s.Pools) + " pools until " + s.Last.UTC().Format(time.RFC3339)
	}
	return text
}

// ProtectAfterRestore must be called once when the ledger has lost commits, because it was restored from a backup or replaced by a standby
// that lacked commits. Holders may still use slots that the lost part of the ledger granted. So each pool grants nothing, at any replica,
// for a standstill. The standstill takes as long as the longest lease that the ledger knows in the pool, but at least minDuration and 300 s.
// until is the time of the database's clock at which the last standstill ends. A repeated call begins each standstill anew.
//
// If a pool has had leases of callers, or the token of a caller covers it, its standstill is at least its longest caller lease.
//
// A number that the lost part of the ledger gave must not be given again. So fencing tokens and the ids of tasks, batches and events are
// increased by numberJump. The versions of pools are increased too, because the semaphore may know a later version. Replicas forget their
// cached tokens.
func (s *Store) ProtectAfterRestore(ctx context.Context, actor string, minDuration time.Duration) (until time.Time, err error) {
	defer wrapError(&err, "preparing the ledger after a restore")
	err = s.write(ctx, func(tx session) error {
		until, err = tx.protectAfterRestore(ctx, actor, max(minDuration, minStandstill))
		return err
	})
	return until, err
}

func (s session) protectAfterRestore(ctx context.Context, actor string, minDuration time.Duration) (until time.Time, err error) {
	if s.lockGrants != "" { // waits until claims in progress have committed; later claims read what this transaction writes
		if _, err := s.exec(ctx, s.lockGrants); err != nil {
			return until, fmt.Errorf("waiting for claims in progress: %w", err)
		}
	}
	for _, leap := range s.advanceNumbers {
		reached, err := queryOne(ctx, s, singleColumn[int64], leap, int64(numberJump))
		if err != nil && !errors.Is(err, ErrNotFound) { // no row means that no such number was ever given
			return until, fmt.Errorf("advancing the sequences: %w", err)
		}
		if reached > maxNumber-numberJump {
			return until, errUsedUp
		}
	}
	if _, err := s.exec(ctx, `UPDATE pools SET version = version + $1, updated_at = {now}`, int64(numberJump)); err != nil {
		return until, fmt.Errorf("raising the versions of pools: %w", err)
	}
	if _, err := s.exec(ctx, `UPDATE hawkbit_actions SET last = last + $1`, hawkbitJump); err != nil {
		return until, fmt.Errorf("advancing the numbers of DDI actions: %w", err)
	}
	if _, err := s.exec(ctx, `INSERT INTO token_changes (hash) VALUES ('')`); err != nil {
		return until, fmt.Errorf("invalidating cached tokens: %w", err)
	}
	s.pendingNews.addAllDevices()
	stands, err := s.blockGrants(ctx, minDuration)
	if err != nil {
		return until, err
	}
	return stands.Last, s.recordEvent(ctx, Event{Kind: "ledger.restored", Actor: actor, Detail: stands.String()})
}

// blockGrants sets the end of the standstill of each pool to at least minDuration from now, and returns a summary. If a later end is
// already set, it stays. Deleted pools get a standstill too, because such a pool may have been created again after the backup.
func (s session) blockGrants(ctx context.Context, minDuration time.Duration) (standstill Standstill, err error) {
	now, err := s.readClock(ctx)
	if err != nil {
		return standstill, err
	}
	until := now.Add(minDuration)
	if _, err := s.exec(ctx, `INSERT INTO restores (at, until) VALUES ({epoch} + $1 * {ms}, {epoch} + $2 * {ms})`, now.UnixMilli(), until.UnixMilli()); err != nil {
		return standstill, fmt.Errorf("recording the restore: %w", err)
	}
	used, err := s.callerPools(ctx)
	if err != nil {
		return standstill, err
	}
	_, err = s.exec(ctx, `
		UPDATE pools AS p SET stands_until = greatest(coalesce(p.stands_until, {epoch}),
			{epoch} + (CAST($2 AS bigint) + greatest(CAST($3 AS bigint), p.lease_ms,
				CASE WHEN p.name IN (SELECT name FROM {names}) OR EXISTS (SELECT 1 FROM batches b WHERE b.pool = p.name AND b.system) THEN p.longest_ms ELSE 0 END,
				coalesce((SELECT max(`+longestLease+`) FROM grants g WHERE g.pool = p.name), 0),
				coalesce((SELECT max(b.lease_ms) FROM batches b WHERE b.pool = p.name AND b.lease_ms > 0
					AND EXISTS (SELECT 1 FROM tasks t WHERE t.batch = b.id AND t.state = 'pending')), 0),
				coalesce((SELECT max(t.lease_ms) FROM tasks t WHERE t.pool = p.name AND t.state = 'pending' AND t.device >= '@' AND t.device < 'A'), 0)
			)) * {ms})`, namesToJSONArray(used), now.UnixMilli(), minDuration.Milliseconds())
	if err != nil {
		return standstill, fmt.Errorf("writing the standstill of pools: %w", err)
	}
	standstill, err = s.readStandstill(ctx)
	if standstill.Pools == 0 {
		standstill.First, standstill.Last = until, until
	}
	return standstill, err
}

// callerPools returns the pools that the tokens of callers cover. It includes expired tokens, because an expired token may have been valid for
// some time after the backup.
func (s session) callerPools(ctx context.Context) ([]string, error) {
	patterns, err := collect(ctx, s, singleColumn[[]string],
		`SELECT pools FROM tokens WHERE device = '' AND revoked_at IS NULL AND pools IS NOT NULL`)
	if err != nil {
		return nil, fmt.Errorf("reading the tokens of callers: %w", err)
	}
	all, err := collect(ctx, s, singleColumn[string], `SELECT name FROM pools`)
	if err != nil {
		return nil, fmt.Errorf("reading the pools: %w", err)
	}
	covering := slices.Concat(patterns...)
	slices.Sort(covering)
	covering = slices.Compact(covering)
	return slices.DeleteFunc(all, func(pool string) bool { return !Covers(covering, pool) }), nil
}

// Standstill returns the summary of the pools that grant nothing after a restore.
func (s *Store) Standstill(ctx context.Context) (Standstill, error) {
	return s.readSession().readStandstill(ctx)
}

func (s session) readStandstill(ctx context.Context) (Standstill, error) {
	return queryOne(ctx, s, func(r *Standstill) []any { return []any{&r.Pools, &r.First, &r.Last} },
		`SELECT count(*), min(stands_until), max(stands_until) FROM pools WHERE stands_until > {now} AND deleted_at IS NULL`)
}
