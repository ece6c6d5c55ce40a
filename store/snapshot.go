package store

import (
	"context"
	"database/sql"
	"fmt"
)

const (
	snapshotsMost = 6  // at once: each keeps a connection
	snapshotDepth = 64 // events that name a snapshot
)

// Snapshot is a position in the order of commits, by the log of events. Ids are given
// before their commit, so the newest one alone does not tell two snapshots apart:
// the other is missing an older one. The events in two snapshots of the same name
// are the same.
type Snapshot struct {
	Event int64 // the newest event in it; 0: there is none
	Below int64 // the oldest of the 64 newest
}

// String names the snapshot.
func (m Snapshot) String() string { return fmt.Sprintf("%d.%d", m.Event, m.Below) }

// InOneSnapshot runs read, whose readings with the ctx that it is given all see
// the same snapshot. They must come one after another, and nothing may be written
// with that ctx. It keeps a connection until read returns.
func (s *connection) InOneSnapshot(ctx context.Context, read func(ctx context.Context, at Snapshot) error) error {
	select {
	case s.snapshots <- struct{}{}:
		defer func() { <-s.snapshots }()
	case <-ctx.Done():
		return fmt.Errorf("waiting for a connection: %w", ctx.Err())
	}
	return s.atOnceOn(ctx, s.looking, func(tx session) error {
		var at Snapshot
		err := tx.rowOf(ctx, `SELECT coalesce(max(id), 0), coalesce(min(id), 0) FROM (SELECT id FROM events ORDER BY id DESC LIMIT $1) AS newest`,
			[]any{snapshotDepth}, &at.Event, &at.Below)
		if err != nil {
			return fmt.Errorf("naming the snapshot: %w", err)
		}
		return read(context.WithValue(ctx, snapshotKey{s}, tx), at)
	})
}

type snapshotKey struct{ of *connection }

// snapshotOf is the transaction of the snapshot that ctx is in, if it is in one.
func (s *connection) snapshotOf(ctx context.Context) (tx session, inside bool) {
	tx, inside = ctx.Value(snapshotKey{s}).(session)
	return tx, inside
}

// reader runs queries in the snapshot that ctx is in, or as they are.
type reader struct {
	database
	of      *connection
	planned bool // as in planned
}

// QueryContext is what all readings come through.
func (r reader) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	tx, inside := r.of.snapshotOf(ctx)
	switch {
	case !inside:
		return r.database.QueryContext(ctx, query, args...)
	case r.planned:
		return tx.unprepared().QueryContext(ctx, query, args...)
	}
	return tx.QueryContext(ctx, query, args...)
}
