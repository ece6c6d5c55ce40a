package store

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"
)

// maxTries is the maximum number of runs of a transaction that the server rolls back because of conflicts.
const maxTries = 3

// connection is the access to the database that all parts of the ledger share. It runs sessions inside and outside of transactions.
type connection struct {
	db                    *sqlx.DB
	slow                  *sqlx.DB  // for long statements such as COPY and migrations; may be the same as db
	snapshotDB            *sqlx.DB  // for snapshots; may be the same as db
	prepared              *prepared // of db
	pinger                *pinger   // nil means that there is no network to the database
	running               sync.Map  // the idempotency keys (Once) whose requests are in progress, by owner and key
	recordsAccountChanges bool      // a change of a device also records the change of its account at the MQTT broker
	disk                  fullDisk
	file                  string                                    // path of the SQLite file
	onNews                func(ctx context.Context, newestID int64) // called for news that this process commits; nil means that nothing is called
	snapshots             chan struct{}                             // a semaphore: its capacity is the number of concurrent snapshots
	dialect
}

// readSession returns a session for single statements. Each statement reads one consistent snapshot.
func (s *connection) readSession() session {
	return s.newSession(reader{s.prepared, s, false}, nil)
}

// newSession returns a session on target. news collects the news of a transaction. It is nil outside of transactions.
func (s *connection) newSession(target database, news *pendingNews) session {
	return session{target, s.dialect, s.recordsAccountChanges, news}
}

// customPlanSession returns a session in which Postgres plans each statement for its arguments. Statements with filters use it.
func (s *connection) customPlanSession() session { return s.newSession(reader{s.db, s, true}, nil) }

// write runs change in one transaction. If the server rolls the transaction back because of a conflict (deadlock, serialization failure),
// change runs again, at most maxTries times. So change must first reset the outer variables that it sets.
func (s *connection) write(ctx context.Context, change func(session) error) error {
	for try := 1; ; try++ {
		s.prepared.preparePending(ctx)
		var news pendingNews
		err := s.writeOnce(ctx, s.db, func(tx *sqlx.Tx) error {
			in := s.newSession(preparedTx{tx, s.prepared}, &news)
			if err := change(in); err != nil {
				return err
			}
			return in.addNews(ctx)
		})
		s.notifyNews(ctx, news, err)
		if err == nil || try == maxTries || !isConflict(err) {
			return err
		}
	}
}

// inTx runs change in one transaction as write does, and returns the result of change. If the transaction fails, the result is the zero
// value.
func inTx[Value any](ctx context.Context, ledger *connection, change func(session) (Value, error)) (result Value, err error) {
	err = ledger.write(ctx, func(tx session) (err error) {
		result, err = change(tx)
		return err
	})
	if err != nil {
		result = *new(Value)
	}
	return result, err
}

// execInTx runs one statement in a transaction of its own and returns the number of rows that it changed.
func (s *connection) execInTx(ctx context.Context, query string, args ...any) (changedRows int64, err error) {
	return inTx(ctx, s, func(tx session) (int64, error) { return tx.exec(ctx, query, args...) })
}

// writeOnce runs change in one transaction of db and never repeats it. It prepares no statements, so change may use COPY and SET.
func (s *connection) writeOnce(ctx context.Context, db *sqlx.DB, change func(*sqlx.Tx) error) (err error) {
	defer func() { err = s.disk.recordDiskFull(err, time.Now()) }() //nolint:forbidigo // a time of this process alone
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

// commit commits tx. It returns ErrOutcomeUnknown if the answer to the COMMIT was lost.
func commit(ctx context.Context, tx *sqlx.Tx) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("not committed: %w", err)
	}
	err := tx.Commit()
	switch {
	case err == nil:
		return nil
	case isCommitFailure(err):
		return fmt.Errorf("committing: %w", err)
	default:
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
}

// withSnapshotSession calls read with a session in which all statements see one snapshot of the data. {now} is still the time of each
// statement.
func (s *connection) withSnapshotSession(ctx context.Context, read func(session) error) error {
	if tx, inside := s.snapshotSessionOf(ctx); inside {
		return read(tx)
	}
	return s.withSnapshotSessionOn(ctx, s.db, read)
}

// withSnapshotSessionOn opens a new snapshot on db and calls read with its session. It uses prepared statements if db is s.db, because a
// statement belongs to the sqlx.DB that prepared it.
func (s *connection) withSnapshotSessionOn(ctx context.Context, db *sqlx.DB, read func(session) error) error {
	if db == s.db {
		s.prepared.preparePending(ctx)
	}
	tx, err := db.BeginTxx(ctx, &sql.TxOptions{Isolation: s.snapshotIsolation})
	if err != nil {
		return fmt.Errorf("beginning a transaction: %w", err)
	}
	defer tx.Rollback()
	if db != s.db {
		return read(s.newSession(tx, nil))
	}
	return read(s.newSession(preparedTx{tx, s.prepared}, nil))
}

const (
	maxSnapshots  = 6  // concurrent snapshots; each uses one connection
	snapshotDepth = 64 // number of events that identify a snapshot
)

// Snapshot identifies a snapshot by its newest events. The id of the newest event does not suffice, because ids are given before the
// commit. So two snapshots with the same newest event may differ in an older event.
type Snapshot struct {
	Event int64 // id of the newest event; 0 means that there are no events
	Below int64 // id of the oldest one of the 64 newest events
}

// String returns the name of the snapshot.
func (m Snapshot) String() string { return fmt.Sprintf("%d.%d", m.Event, m.Below) }

// InOneSnapshot opens a snapshot and calls read with the Snapshot that identifies it. All reads with the ctx of read see this snapshot and run
// one after another. Nothing may be written with this ctx. One connection is in use until read returns.
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

type snapshotKey struct{ conn *connection }

// snapshotSessionOf returns the session of the snapshot in which ctx reads, if there is one.
func (s *connection) snapshotSessionOf(ctx context.Context) (tx session, exists bool) {
	tx, exists = ctx.Value(snapshotKey{s}).(session)
	return tx, exists
}

// reader runs queries in the snapshot of their ctx. If ctx has no snapshot, they run outside of a transaction.
type reader struct {
	database
	conn       *connection
	customPlan bool // plans each statement for its actual arguments (customPlanSession)
}

// QueryContext runs query with args. All reads of the store use it.
func (r reader) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	tx, inside := r.conn.snapshotSessionOf(ctx)
	switch {
	case !inside:
		return r.database.QueryContext(ctx, query, args...)
	case r.customPlan:
		return tx.unprepared().QueryContext(ctx, query, args...)
	}
	return tx.QueryContext(ctx, query, args...)
}
