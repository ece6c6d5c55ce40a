package store

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"
)

// maxTries bounds how often a transaction is tried that the server undoes.
const maxTries = 3

// connection is what all parts of the ledger have in common: the way to the database.
// It runs sessions, in or outside of a transaction.
type connection struct {
	db        *sqlx.DB
	slow      *sqlx.DB  // for what takes long: COPY, migrations; may be db
	looking   *sqlx.DB  // for snapshots; may be db
	prepared  *prepared // nil: statements run as they are
	pulse     *pulse    // nil: there is no network in between
	running   sync.Map  // requests under way that take effect once, by owner and key
	accounts  bool      // changes of devices are noted for their accounts
	disk      fullDisk
	file      string        // of SQLite
	tell      TellNews      // of news that this process commits; nil: nobody
	snapshots chan struct{} // as many as are read at once
	dialect
}

// read is for single statements, each one consistent reading.
func (s *connection) read() session {
	if s.prepared == nil {
		return s.planned()
	}
	return s.session(reader{s.prepared, s, false}, nil)
}

func (s *connection) session(on database, news *telling) session {
	return session{on, s.dialect, s.accounts, news}
}

// planned plans each statement for the values it is given: which index serves
// a filter depends on how many rows have that value.
func (s *connection) planned() session { return s.session(reader{s.db, s, true}, nil) }

// write runs change in one transaction and commits it. Each run must read and
// set anew what change used outside: it is run again when the
// server undid it (deadlock, serialization).
func (s *connection) write(ctx context.Context, change func(session) error) error {
	for try := 1; ; try++ {
		s.prepared.prepareNoted(ctx)
		var news telling
		err := s.writeOnce(ctx, s.db, func(tx *sqlx.Tx) error {
			in := s.session(s.prepared.in(tx), &news)
			if err := change(in); err != nil {
				return err
			}
			return in.addNews(ctx)
		})
		s.announce(ctx, news, err)
		if err == nil || try == maxTries || !retryable(err) {
			return err
		}
	}
}

// writeOnce runs change in one transaction. It prepares nothing by itself: COPY and SET come this way.
func (s *connection) writeOnce(ctx context.Context, db *sqlx.DB, change func(*sqlx.Tx) error) (err error) {
	defer func() { err = s.disk.examine(err, time.Now()) }() //nolint:forbidigo // a time of this process alone
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return fmt.Errorf("beginning a transaction: %w", err)
	}
	defer tx.Rollback()
	if err := change(tx); err != nil {
		return err
	}
	return commit(ctx, tx)
}

// commit tells a COMMIT that failed from one whose answer never came.
func commit(ctx context.Context, tx *sqlx.Tx) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("before commit: %w", err)
	}
	err := tx.Commit()
	switch {
	case err == nil:
		return nil
	case refused(err):
		return fmt.Errorf("committing: %w", err)
	default:
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
}

// atOnce runs several readings of one moment, though each reads the clock anew.
func (s *connection) atOnce(ctx context.Context, read func(session) error) error {
	if tx, inside := s.snapshotOf(ctx); inside {
		return read(tx)
	}
	return s.atOnceOn(ctx, s.db, read)
}

func (s *connection) atOnceOn(ctx context.Context, db *sqlx.DB, read func(session) error) error {
	s.prepared.prepareNoted(ctx)
	tx, err := db.BeginTxx(ctx, &sql.TxOptions{Isolation: s.snapshot})
	if err != nil {
		return fmt.Errorf("beginning a transaction: %w", err)
	}
	defer tx.Rollback()
	return read(s.session(s.prepared.in(tx), nil))
}
