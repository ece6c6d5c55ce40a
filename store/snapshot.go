package store

import (
	"context"
	"database/sql"
	"fmt"
)

const (
	maxSnapshots  = 6  // concurrent snapshots; each uses one connection
	snapshotDepth = 64 // number of events that identify a snapshot
)

// Snapshot identifies a database snapshot by the newest events in it. If two snapshots have equal values, they have the same events. The
// newest event alone does not suffice: ids are given before the commit, so an older event may still be missing in one of two snapshots.
type Snapshot struct {
	Event int64 // id of the newest event; 0 means that there are no events
	Below int64 // id of the oldest one of the 64 newest events
}

// String returns the name of the snapshot.
func (m Snapshot) String() string { return fmt.Sprintf("%d.%d", m.Event, m.Below) }

// InOneSnapshot opens a snapshot and calls read. The parameter at of read identifies the snapshot. All reads with the ctx of read use the
// snapshot. These reads must run one after another, and nothing may be written with this ctx. One connection is in use until read returns.
func (s *connection) InOneSnapshot(ctx context.Context, read func(ctx context.Context, at Snapshot) error) error {
	select {
	case s.snapshots <- struct{}{}:
		defer func() { <-s.snapshots }()
	case <-ctx.Done():
		return fmt.Errorf("waiting for a connection: %w", ctx.Err())
	}
	return s.withSnapshotSessionOn(ctx, s.snapshotDB, func(tx session) error {
		var at Snapshot
		err := tx.scanRow(ctx, []any{&at.Event, &at.Below}, `SELECT coalesce(max(id), 0), coalesce(min(id), 0) FROM (SELECT id FROM events ORDER BY id DESC LIMIT $1) AS newest`, snapshotDepth)
		if err != nil {
			return fmt.Errorf("reading the id of the snapshot: %w", err)
		}
		return read(context.WithValue(ctx, snapshotKey{s}, tx), at)
	})
}

// snapshotKey is the context key under which InOneSnapshot stores the session of a snapshot of conn.
type snapshotKey struct{ conn *connection }

// snapshotOf returns the session of the snapshot in which ctx reads (InOneSnapshot). exists is false if ctx belongs to no snapshot.
func (s *connection) snapshotOf(ctx context.Context) (tx session, exists bool) {
	tx, exists = ctx.Value(snapshotKey{s}).(session)
	return tx, exists
}

// reader is a database that runs queries in the snapshot to which ctx belongs. If ctx belongs to no snapshot, it runs queries outside of a
// transaction.
type reader struct {
	database
	conn       *connection
	customPlan bool // plans each statement for its actual arguments (customPlanSession)
}

// QueryContext runs query with args. All reads of the store use it.
func (r reader) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	tx, inside := r.conn.snapshotOf(ctx)
	switch {
	case !inside:
		return r.database.QueryContext(ctx, query, args...)
	case r.customPlan:
		return tx.unprepared().QueryContext(ctx, query, args...)
	}
	return tx.QueryContext(ctx, query, args...)
}
