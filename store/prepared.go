package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"slices"
	"sync"

	"github.com/jmoiron/sqlx"
)

// prepared runs statements that are prepared once per connection, because planning takes a database up to ten times longer than running.
//
// To prepare the text of a statement, a connection of its own is needed. A transaction could wait for this connection forever, because all
// connections may belong to transactions that wait in the same way. So if a transaction is the first to run a text, the text runs
// unprepared. It is prepared before the next transaction begins.
type prepared struct {
	*sqlx.DB

	preparing chan struct{} // holds one element while a caller prepares a statement

	mu         sync.Mutex
	statements map[string]*sql.Stmt // by their texts; few, because only texts of this package are prepared
	unprepared []string             // texts that transactions ran and that are not prepared yet
}

// newPrepared returns a prepared for db, without any statement yet.
func newPrepared(db *sqlx.DB) *prepared {
	return &prepared{DB: db, preparing: make(chan struct{}, 1), statements: map[string]*sql.Stmt{}}
}

// QueryContext runs query with args as a prepared statement, outside of transactions.
func (p *prepared) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	statement, err := p.getOrPrepare(ctx, query) //nolint:sqlclosecheck // kept, and closed with the database
	if err != nil {
		return nil, err
	}
	return statement.QueryContext(ctx, args...)
}

// getOrPrepare returns the prepared statement of query, and prepares it if necessary. Only one caller prepares at a time. Otherwise two
// callers could prepare one text, and one statement would have to be closed. Closing a statement waits for the query on its connection, and
// this connection may belong to a transaction that waits here.
func (p *prepared) getOrPrepare(ctx context.Context, query string) (*sql.Stmt, error) {
	if known := p.cachedStatement(query); known != nil {
		return known, nil
	}
	select {
	case p.preparing <- struct{}{}:
		defer func() { <-p.preparing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if known := p.cachedStatement(query); known != nil { // another caller has prepared it
		return known, nil
	}
	made, err := p.PrepareContext(ctx, query) //nolint:sqlclosecheck // kept, and closed with the database
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.statements[query] = made
	return made, nil
}

func (p *prepared) cachedStatement(query string) *sql.Stmt {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.statements[query]
}

// preparePending prepares the texts that transactions queued. The caller must hold no connection.
func (p *prepared) preparePending(ctx context.Context) {
	p.mu.Lock()
	noted := p.unprepared
	p.unprepared = nil
	p.mu.Unlock()
	for _, query := range noted {
		if _, err := p.getOrPrepare(ctx, query); err != nil { //nolint:sqlclosecheck // kept
			return
		}
	}
}

// closeIdleConns closes the idle connections at once. It does not close their statements one by one, because it would wait for about a
// thousand answers.
func (p *prepared) closeIdleConns() error {
	var errs []error
	for p.Stats().Idle > 0 {
		conn, err := p.Conn(context.Background())
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		err = conn.Raw(func(c any) error {
			if conn, ok := c.(driver.Conn); ok {
				errs = append(errs, conn.Close())
			}
			return driver.ErrBadConn // makes the pool drop the connection and its statements
		})
		if !errors.Is(err, driver.ErrBadConn) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// preparedTx is a transaction that runs prepared statements. The field from has these statements. If the connection of the transaction lacks
// a statement, database/sql prepares it on this connection.
type preparedTx struct {
	*sqlx.Tx
	from *prepared
}

// QueryContext runs query with args in the transaction. It uses the prepared statement of the query if there is one.
func (t preparedTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if statement := t.from.cachedStatementOrQueue(query); statement != nil {
		return t.StmtContext(ctx, statement).QueryContext(ctx, args...) //nolint:sqlclosecheck // closed with the transaction
	}
	return t.Tx.QueryContext(ctx, query, args...)
}

// ExecContext executes query with args in the transaction. It uses the prepared statement of the query if there is one.
func (t preparedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if statement := t.from.cachedStatementOrQueue(query); statement != nil {
		return t.StmtContext(ctx, statement).ExecContext(ctx, args...) //nolint:sqlclosecheck // closed with the transaction
	}
	return t.Tx.ExecContext(ctx, query, args...)
}

// cachedStatementOrQueue returns the prepared statement of query, or queues the text and returns nil.
func (p *prepared) cachedStatementOrQueue(query string) *sql.Stmt {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.statements[query]
	if known == nil && !slices.Contains(p.unprepared, query) {
		p.unprepared = append(p.unprepared, query)
	}
	return known
}

// unprepared returns the same session without prepared statements.
func (s session) unprepared() session {
	if tx, ok := s.database.(preparedTx); ok {
		s.database = tx.Tx
	}
	return s
}
