package store

import (
	"context"
	"database/sql"
	"sync"

	"github.com/jmoiron/sqlx"
)

// prepared runs readings as prepared statements, each text prepared once per
// connection. Most reports are refused, and cost one reading: planning it each
// time takes Postgres some ten times longer than running it.
//
// Only readings outside of transactions come here: preparing needs a
// connection of its own, which inside of one may never come free.
type prepared struct {
	*sqlx.DB

	mu         sync.Mutex
	statements map[string]*sqlx.Stmt // the texts of this package: few
}

func newPrepared(db *sqlx.DB) *prepared {
	return &prepared{DB: db, statements: make(map[string]*sqlx.Stmt)}
}

// QueryContext runs the query prepared.
func (p *prepared) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	statement, err := p.statement(ctx, query) //nolint:sqlclosecheck // kept, and closed with the database
	if err != nil {
		return nil, err
	}
	return statement.QueryContext(ctx, args...)
}

func (p *prepared) statement(ctx context.Context, query string) (*sqlx.Stmt, error) {
	p.mu.Lock()
	known := p.statements[query]
	p.mu.Unlock()
	if known != nil {
		return known, nil
	}
	made, err := p.PreparexContext(ctx, query)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if known = p.statements[query]; known != nil { // another one was faster
		return known, made.Close() //nolint:sqlclosecheck // the other one is kept
	}
	p.statements[query] = made
	return made, nil
}
