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

type warmedConns struct {
	sync.Mutex
	rehearsed map[any]bool // keyed by the driver's connection
}

// Warm opens connections until half of the allowed number are open. On each new connection, it runs the statements that every report needs,
// for data that does not exist. Without Warm, the first reports on a connection would be slow, because Postgres needs ten times as long for
// the first run of a statement. New connections are opened just when the load is high. Connections expire, so Warm must be called
// regularly.
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
	}
	now := make(map[any]bool)
	var held []*sqlx.Conn
	defer func() {
		for _, conn := range held {
			_ = conn.Close()
		}
	}()
	for s.mayTakeConn(len(held)) {
		conn, err := s.db.Connx(ctx)
		if err != nil {
			return fmt.Errorf("opening a connection: %w", err)
		}
		held = append(held, conn)
	}
	for _, conn := range held {
		id, err := s.warmUp(ctx, conn)
		if err != nil {
			return fmt.Errorf("warming up a connection: %w", err)
		}
		now[id] = true
		_ = conn.Close()
	}
	s.warmed.rehearsed = now
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

// warmUp runs rehearseStatements on conn, unless it already ran on this connection. connID identifies the connection.
func (s *Store) warmUp(ctx context.Context, conn *sqlx.Conn) (connID any, err error) {
	err = conn.Raw(func(driverConn any) error {
		connID = driverConn
		return nil
	})
	if err != nil || s.warmed.rehearsed[connID] {
		return connID, err
	}
	for range rehearsals {
		if err := s.rehearseStatements(ctx, conn); err != nil {
			return nil, err
		}
	}
	return connID, nil
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
