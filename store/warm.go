package store

import (
	"context"
	"database/sql"
	"fmt"
	"sync"

	"github.com/jmoiron/sqlx"
)

// rehearsals is the number of runs of each statement on a new connection. Postgres plans a text five times before it keeps a plan.
const rehearsals = 6

// newConnsPerCall is the number of connections that one call of Warm prepares. Postgres needs about a tenth of a second of processor time for
// each, which a starting replica would take from its first reports.
const newConnsPerCall = 2

type warmedConns struct {
	sync.Mutex
	rehearsed map[any]bool // by the driver's connection; includes closed connections
}

// Warm opens up to newConnsPerCall connections, until half of the allowed number are open. On each new connection, it runs the statements
// that every report needs, for data that does not exist. Without Warm, the first reports on a connection would be slow, because Postgres
// needs ten times as long for the first run of a statement. New connections are opened just when the load is high. Connections expire, so
// Warm must be called regularly.
func (s *Store) Warm(ctx context.Context) error {
	if s.prepared == nil || s.db.Stats().MaxOpenConnections < 2 {
		return nil
	}
	if err := s.pinger.takePanicError(); err != nil {
		return err
	}
	s.warmed.Lock()
	defer s.warmed.Unlock()
	if s.warmed.rehearsed == nil {
		if err := s.prepareRehearsedStatements(ctx); err != nil {
			return fmt.Errorf("preparing statements: %w", err)
		}
		s.warmed.rehearsed = make(map[any]bool)
	}
	if len(s.warmed.rehearsed) > 10*s.db.Stats().MaxOpenConnections { // most of them are closed; Warm prepares the open connections again
		clear(s.warmed.rehearsed)
	}
	var held []*sqlx.Conn // all are held until the end, so that each call of Connx returns another connection
	defer func() {
		for _, conn := range held {
			_ = conn.Close()
		}
	}()
	for added := 0; added < newConnsPerCall && s.mayTakeConn(len(held)); {
		conn, err := s.db.Connx(ctx)
		if err != nil {
			return fmt.Errorf("opening a connection: %w", err)
		}
		held = append(held, conn)
		isNew, err := s.warmUp(ctx, conn)
		if err != nil {
			return fmt.Errorf("warming up a connection: %w", err)
		}
		if isNew {
			added++
		}
	}
	return nil
}

// prepareRehearsedStatements prepares the statements that rehearseStatements runs. The caller must hold no connection.
func (s *Store) prepareRehearsedStatements(ctx context.Context) error {
	conn, err := s.db.Connx(ctx)
	if err != nil {
		return err
	}
	err = s.rehearseStatements(ctx, conn)
	_ = conn.Close()
	s.prepared.preparePending(ctx)
	return err
}

// mayTakeConn reports whether Warm, which already uses heldConns connections, may take one more. Warm uses at most half of the allowed
// connections, and only connections for which no other caller waits.
func (s *Store) mayTakeConn(heldConns int) bool {
	half, now := s.db.Stats().MaxOpenConnections/2, s.db.Stats()
	return heldConns < half && (now.Idle > 0 || now.OpenConnections < half)
}

// warmUp runs rehearseStatements on conn, unless it already ran on this connection (isNew is false).
func (s *Store) warmUp(ctx context.Context, conn *sqlx.Conn) (isNew bool, err error) {
	var id any
	err = conn.Raw(func(driverConn any) error {
		id = driverConn
		return nil
	})
	if err != nil || s.warmed.rehearsed[id] {
		return false, err
	}
	for range rehearsals {
		if err := s.rehearseStatements(ctx, conn); err != nil {
			return false, err
		}
	}
	s.warmed.rehearsed[id] = true
	return true, nil
}

// rehearseStatements runs the statements of reads, claims and results for the task 0, which does not exist, so nothing changes.
func (s *Store) rehearseStatements(ctx context.Context, conn *sqlx.Conn) error {
	tx, err := conn.BeginTxx(ctx, &sql.TxOptions{})
	if err != nil {
		return err
	}
	defer tx.Rollback()
	in := s.newSession(preparedTx{tx, s.prepared}, nil)
	if _, err := in.readRegistrations(ctx, []string{""}); err != nil {
		return err
	}
	if _, err := in.readViews(ctx, []string{""}); err != nil {
		return err
	}
	if _, err := in.claimGrants(ctx, []claimRow{{}}, false, failTaken); err != nil {
		return err
	}
	if _, err := in.giveTokens(ctx, rowsToJSONArray([]claimRow{{}})); err != nil {
		return err
	}
	if _, err := in.endReportedGrants(ctx, []reportedRow{{}}, nil, nil); err != nil {
		return err
	}
	_, _, err = in.writeEndings(ctx, rowsToJSONArray([]endingRow{{}}))
	return err
}
