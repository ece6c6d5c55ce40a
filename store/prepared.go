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

// prepared runs statements that were prepared once per connection: planning
// one each time takes Postgres up to ten times longer than running it.
//
// Preparing a new text needs a connection of its own, which inside of a
// transaction may never come free: all others may be held by transactions
// that want the same. So a text that a transaction runs first is only noted,
// and prepared before the next transaction begins.
type prepared struct {
	*sqlx.DB

	preparing chan struct{} // held by the one who prepares

	mu         sync.Mutex
	statements map[string]*sql.Stmt // the texts of this package: few
	noted      []string             // texts of transactions, not prepared yet
}

func newPrepared(db *sqlx.DB) *prepared {
	return &prepared{DB: db, preparing: make(chan struct{}, 1), statements: map[string]*sql.Stmt{}}
}

// QueryContext runs the query prepared, outside of transactions.
func (p *prepared) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	statement, err := p.statement(ctx, query) //nolint:sqlclosecheck // kept, and closed with the database
	if err != nil {
		return nil, err
	}
	return statement.QueryContext(ctx, args...)
}

// statement returns the prepared statement of a text. One caller prepares at a
// time: a text that two had prepared would have to be closed once, and that
// waits for whatever runs on its connection, which may wait for a transaction
// that waits here.
func (p *prepared) statement(ctx context.Context, query string) (*sql.Stmt, error) {
	if known := p.known(query); known != nil {
		return known, nil
	}
	select {
	case p.preparing <- struct{}{}:
		defer func() { <-p.preparing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if known := p.known(query); known != nil { // another one was faster
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

func (p *prepared) known(query string) *sql.Stmt {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.statements[query]
}

// prepareNoted prepares what earlier transactions noted. The caller must hold
// no connection. A text that fails here runs unprepared, and is noted anew. A
// nil p prepares nothing.
func (p *prepared) prepareNoted(ctx context.Context) {
	if p == nil {
		return
	}
	p.mu.Lock()
	noted := p.noted
	p.noted = nil
	p.mu.Unlock()
	for _, query := range noted {
		if _, err := p.statement(ctx, query); err != nil { //nolint:sqlclosecheck // kept
			return
		}
	}
}

// leave ends the idle connections at once. Closing the pool would first close each
// statement of each of them, and wait for an answer each time: a thousand answers,
// of a server that is busy or silent.
func (p *prepared) leave() error {
	if p == nil {
		return nil
	}
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
			return driver.ErrBadConn // the pool forgets it, and its statements
		})
		if !errors.Is(err, driver.ErrBadConn) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// in returns tx running its statements prepared; a nil p changes nothing.
func (p *prepared) in(tx *sqlx.Tx) database {
	if p == nil {
		return tx
	}
	return preparedTx{tx, p}
}

// preparedTx is a transaction that runs what is prepared on the pool, anew on
// its own connection if need be, and all else as it is.
type preparedTx struct {
	*sqlx.Tx
	from *prepared
}

// QueryContext uses the prepared statement, if there is one.
func (t preparedTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if statement := t.from.orNote(query); statement != nil {
		return t.StmtContext(ctx, statement).QueryContext(ctx, args...) //nolint:sqlclosecheck // closed with the transaction
	}
	return t.Tx.QueryContext(ctx, query, args...)
}

// ExecContext uses the prepared statement, if there is one.
func (t preparedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if statement := t.from.orNote(query); statement != nil {
		return t.StmtContext(ctx, statement).ExecContext(ctx, args...) //nolint:sqlclosecheck // closed with the transaction
	}
	return t.Tx.ExecContext(ctx, query, args...)
}

// orNote returns the prepared statement, or nil after noting its text.
func (p *prepared) orNote(query string) *sql.Stmt {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.statements[query]
	if known == nil && !slices.Contains(p.noted, query) {
		p.noted = append(p.noted, query)
	}
	return known
}

// unprepared is the same transaction, with its statements as they are.
func (s session) unprepared() session {
	if tx, ok := s.database.(preparedTx); ok {
		s.database = tx.Tx
	}
	return s
}
