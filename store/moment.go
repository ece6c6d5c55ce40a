package store

import (
	"context"
	"database/sql"
	"fmt"
)

const (
	momentsMost = 6  // at once: each keeps a connection
	momentDepth = 64 // events that name a moment
)

// Moment is a place in the order of commits, by the log of events. Ids are given
// before their commit, so the newest one alone does not tell two moments apart:
// the other is missing an older one. The events in two moments of the same name
// are the same.
type Moment struct {
	Event int64 // the newest event in it; 0: there is none
	Below int64 // the oldest of the 64 newest
}

// String names the moment.
func (m Moment) String() string { return fmt.Sprintf("%d.%d", m.Event, m.Below) }

// InOneMoment runs read, whose readings with the ctx that it is given all see
// the same moment. They must come one after another, and nothing may be written
// with that ctx. It keeps a connection until read returns.
func (s *Store) InOneMoment(ctx context.Context, read func(ctx context.Context, at Moment) error) error {
	select {
	case s.moments <- struct{}{}:
		defer func() { <-s.moments }()
	case <-ctx.Done():
		return fmt.Errorf("waiting for a connection: %w", ctx.Err())
	}
	return s.atOnceOn(ctx, s.looking, func(tx session) error {
		var at Moment
		err := tx.rowOf(ctx, `SELECT coalesce(max(id), 0), coalesce(min(id), 0) FROM (SELECT id FROM events ORDER BY id DESC LIMIT $1) AS newest`,
			[]any{momentDepth}, &at.Event, &at.Below)
		if err != nil {
			return fmt.Errorf("naming the moment: %w", err)
		}
		return read(context.WithValue(ctx, momentKey{s}, tx), at)
	})
}

type momentKey struct{ of *Store }

// moment is the transaction of the moment that ctx is in, if it is in one.
func (s *Store) moment(ctx context.Context) (tx session, inside bool) {
	tx, inside = ctx.Value(momentKey{s}).(session)
	return tx, inside
}

// reader runs queries in the moment that ctx is in, or as they are.
type reader struct {
	database
	of      *Store
	planned bool // as in planned
}

// QueryContext is what all readings come through.
func (r reader) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	tx, inside := r.of.moment(ctx)
	switch {
	case !inside:
		return r.database.QueryContext(ctx, query, args...)
	case r.planned:
		return tx.unprepared().QueryContext(ctx, query, args...)
	}
	return tx.QueryContext(ctx, query, args...)
}
