package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// replicaKept is the time for which the row of a replica that ended without RemoveReplica is kept after its last heartbeat.
const replicaKept = time.Hour

// replicas holds the running replicas and the last stored pair of clock times (ClockPair).
type replicas struct{ *connection }

// Replica is one process, as of its last heartbeat.
type Replica struct {
	ID, Host, Address, Version string
	Started, Seen              time.Time
	Reaped                     *time.Time // the last pass of the replica's reaper; nil means none yet
	State                      json.RawMessage
}

// Heartbeat is the data that a replica regularly stores about itself. It has durations up to now instead of times, because the clocks of
// the replica and the database differ.
type Heartbeat struct {
	ID, Host, Address, Version string
	Uptime                     time.Duration  // since the replica started
	SinceReap                  *time.Duration // since the last pass of the replica's reaper; nil means none yet
	State                      json.RawMessage
	Tallies                    json.RawMessage
}

// RecordHeartbeat stores a heartbeat, and deletes replicas that sent none for an hour.
func (s replicas) RecordHeartbeat(ctx context.Context, heartbeat Heartbeat) (err error) {
	defer wrapError(&err, "storing the heartbeat of this replica")
	var reaped *int64
	if heartbeat.SinceReap != nil {
		ms := heartbeat.SinceReap.Milliseconds()
		reaped = &ms
	}
	return s.write(ctx, func(tx session) error {
		if _, err := tx.exec(ctx, `DELETE FROM replicas WHERE seen_at < {now} - $1 * {ms}`, replicaKept.Milliseconds()); err != nil {
			return err
		}
		_, err := tx.exec(ctx, `
			INSERT INTO replicas (id, host, address, version, started_at, seen_at, reaped_at, state, tallies)
			VALUES ($1, $2, $3, $4, {now} - $5 * {ms}, {now}, {now} - $6 * {ms}, $7, $8)
			ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, reaped_at = excluded.reaped_at, state = excluded.state, tallies = excluded.tallies`,
			heartbeat.ID, heartbeat.Host, heartbeat.Address, heartbeat.Version, heartbeat.Uptime.Milliseconds(), reaped, string(heartbeat.State), string(heartbeat.Tallies))
		return err
	})
}

// RemoveReplica deletes the row of a replica that is ending.
func (s replicas) RemoveReplica(ctx context.Context, id string) error {
	_, err := s.execInTx(ctx, `DELETE FROM replicas WHERE id = $1`, id)
	return err
}

// Replicas returns the replicas that sent a heartbeat within the last hour and have not ended, oldest first, and the ledger's time (now).
func (s replicas) Replicas(ctx context.Context) (live []Replica, now time.Time, err error) {
	type reading struct {
		Replica
		state string
		now   time.Time
	}
	rows, err := collect(ctx, s.readSession(), func(r *reading) []any {
		return []any{&r.ID, &r.Host, &r.Address, &r.Version, &r.Started, &r.Seen, &r.Reaped, &r.state, &r.now}
	}, `SELECT id, host, address, version, started_at, seen_at, reaped_at, state, {now} FROM replicas ORDER BY started_at, id`)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("reading the replicas: %w", err)
	}
	for _, r := range rows {
		r.State, now = json.RawMessage(r.state), r.now
		live = append(live, r.Replica)
	}
	return live, now, nil
}

// Tallies holds the counters of a replica. They count from the start of the replica.
type Tallies struct {
	Replica string
	Uptime  time.Duration // time since the replica started, as of its last heartbeat
	Counts  json.RawMessage
}

// ReplicaTallies returns the tallies (counters since the start of a replica) of all replicas that sent a heartbeat.
func (s replicas) ReplicaTallies(ctx context.Context) ([]Tallies, error) {
	type reading struct {
		Tallies
		started, seen time.Time
		counts        string
	}
	rows, err := collect(ctx, s.readSession(), func(r *reading) []any {
		return []any{&r.Replica, &r.started, &r.seen, &r.counts}
	}, `SELECT id, started_at, seen_at, tallies FROM replicas`)
	if err != nil {
		return nil, fmt.Errorf("reading the tallies of the replicas: %w", err)
	}
	list := make([]Tallies, len(rows))
	for i, r := range rows {
		list[i] = Tallies{Replica: r.Replica, Uptime: r.seen.Sub(r.started), Counts: json.RawMessage(r.counts)}
	}
	return list, nil
}

// ClockPair holds the times that two clocks showed at the same moment.
type ClockPair struct {
	Ledger time.Time // the time of the database's clock that the replica trusted
	Wall   time.Time // time of the clock of the replica's host
}

// LeaseClock holds the present time of the database's clock, and the data by which a replica decides whether leases have ended.
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

// StoreClockPair replaces the stored clock pair by pair. Replicas that start later read the stored pair.
func (s replicas) StoreClockPair(ctx context.Context, pair ClockPair) (err error) {
	defer wrapError(&err, "storing a pair of clock readings")
	_, err = s.execInTx(ctx, `
		INSERT INTO clock_pair (id, ledger, wall) VALUES (1, {epoch} + $1 * {ms}, {epoch} + $2 * {ms})
		ON CONFLICT (id) DO UPDATE SET ledger = excluded.ledger, wall = excluded.wall`,
		pair.Ledger.UnixMilli(), pair.Wall.UnixMilli())
	return err
}
