package store

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"
)

// maxTries is the maximum number of times that a transaction is run if the server rolls it back because of a conflict.
const maxTries = 3

// connection is the access to the database that all parts of the ledger share. It runs sessions inside and outside of transactions.
type connection struct {
	db        *sqlx.DB
	slow      *sqlx.DB  // for long statements such as COPY and migrations; may be db
	looking   *sqlx.DB  // for snapshots; may be db
	prepared  *prepared // nil means that statements run unprepared
	pulse     *pulse    // nil means that there is no network to the database
	running   sync.Map  // requests in progress that take effect once, by owner and key
	accounts  bool      // changes of devices are recorded for their accounts at the broker
	disk      fullDisk
	file      string        // path of the SQLite file
	tell      TellNews      // called for news that this process commits; nil means that nothing is called
	snapshots chan struct{} // a semaphore: its capacity is the number of concurrent snapshots
	dialect
}

// read returns a session for single statements. Each statement reads one consistent snapshot.
func (s *connection) read() session {
	if s.prepared == nil {
		return s.planned()
	}
	return s.session(reader{s.prepared, s, false}, nil)
}

func (s *connection) session(on database, news *telling) session {
	return session{on, s.dialect, s.accounts, news}
}

// planned returns a session that plans each statement for its actual arguments, because the best index for a filter depends on how many
// rows match the value.
func (s *connection) planned() session { return s.session(reader{s.db, s, true}, nil) }

// write runs change in one transaction and commits it. If the server rolled the transaction back (deadlock, serialization failure), change
// runs again, at most maxTries times in all. So each run of change must reset all variables outside of it that it sets.
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

// writeOnce runs change in one transaction and never repeats it. It prepares no statement, so it suits COPY and SET.
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

// commit commits tx. It returns ErrOutcomeUnknown if the answer to the COMMIT was lost, and a different error if the COMMIT failed.
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

// atOnce runs several reads in one snapshot. {now} still differs from statement to statement.
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
