package store

import (
	"context"
	"fmt"
	"time"
)

// ClockPair holds the times of two clocks, read at the same moment.
type ClockPair struct {
	Ledger time.Time // the time of the database's clock that the replica trusted
	Wall   time.Time // time of the clock of the replica's host
}

// LeaseClock holds the present time of the database's clock (Now) and the data by which a replica decides whether leases have ended.
type LeaseClock struct {
	Now        time.Time
	Lengths    []time.Duration // the values of Grant.LongestLease of all grants, without duplicates
	StoredPair *ClockPair      // the pair that StoreClockPair stored last; nil means that no pair is stored
}

// LeaseClock reads the time of the database's clock, the lengths of all leases and the stored clock pair, in one snapshot.
func (s replicas) LeaseClock(ctx context.Context) (LeaseClock, error) {
	type reading struct {
		now, ledger, wall time.Time
		lease             time.Duration
	}
	dest := func(r *reading) []any {
		return []any{&r.now, &r.ledger, &r.wall, &r.lease}
	}
	readings, err := collect(ctx, s.readSession(), dest, `
		SELECT clock.now, kept.ledger, kept.wall, leases.lease_ms
		FROM (SELECT {now} AS now) AS clock LEFT JOIN clock_pair kept ON TRUE
			LEFT JOIN (SELECT DISTINCT `+longestLease+` AS lease_ms FROM grants g) AS leases ON TRUE`)
	if err != nil {
		return LeaseClock{}, fmt.Errorf("reading the ledger's clock: %w", err)
	}
	first := readings[0]
	clock := LeaseClock{Now: first.now}
	if !first.wall.IsZero() {
		clock.StoredPair = &ClockPair{Ledger: first.ledger, Wall: first.wall}
	}
	for _, r := range readings {
		if r.lease > 0 { // 0 means that no lease is in force
			clock.Lengths = append(clock.Lengths, r.lease)
		}
	}
	return clock, nil
}

// StoreClockPair stores pair, and replaces the pair that was stored before. Replicas that start later read it. A pair has the times of the
// ledger's clock and of the host's clock, read at the same moment.
func (s replicas) StoreClockPair(ctx context.Context, pair ClockPair) (err error) {
	defer describe(&err, "storing a pair of clock readings")
	_, err = s.execInTx(ctx, `
		INSERT INTO clock_pair (id, ledger, wall) VALUES (1, {epoch} + $1 * {ms}, {epoch} + $2 * {ms})
		ON CONFLICT (id) DO UPDATE SET ledger = excluded.ledger, wall = excluded.wall`,
		pair.Ledger.UnixMilli(), pair.Wall.UnixMilli())
	return err
}
