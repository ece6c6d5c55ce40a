// Package migrations holds the schema of the ledger as goose migrations, one embedded tree per dialect. Each migration runs in a
// transaction of its own. On Postgres, replicas that start at the same time wait for each other with a session lock, so each migration is
// applied once.
//
// Until the first tag in git, a change edits the only migration of each tree. A released migration is never edited. A change then adds a file
// with the next number to each tree, and replicas of the previous version must work with it.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// These are the dialects of SQL that the migrations support.
const (
	Postgres = "postgres"
	SQLite   = "sqlite"
)

//go:embed postgres/*.sql sqlite/*.sql
var files embed.FS

// State is one migration and whether it is applied.
type State struct {
	Version int64
	Name    string // name of its file
	Applied bool
	At      time.Time // zero if the migration is not applied
}

// Up applies the missing migrations and returns how many it applied. If another replica applied them first, it returns 0.
func Up(ctx context.Context, db *sql.DB, dialect string) (applied int, err error) {
	p, err := newProvider(db, dialect)
	if err != nil {
		return 0, err
	}
	results, err := p.Up(ctx)
	if err != nil {
		return 0, fmt.Errorf("applying migrations: %w", err)
	}
	return len(results), nil
}

// Down reverts the newest migration, and deletes the data that it added. If no migration is applied, it does nothing.
func Down(ctx context.Context, db *sql.DB, dialect string) error {
	p, err := newProvider(db, dialect)
	if err != nil {
		return err
	}
	if _, err := p.Down(ctx); err != nil && !errors.Is(err, goose.ErrNoNextVersion) {
		return fmt.Errorf("reverting a migration: %w", err)
	}
	return nil
}

// Status returns all migrations, oldest first.
func Status(ctx context.Context, db *sql.DB, dialect string) ([]State, error) {
	p, err := newProvider(db, dialect)
	if err != nil {
		return nil, err
	}
	all, err := p.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading migrations: %w", err)
	}
	states := make([]State, len(all))
	for i, m := range all {
		states[i] = State{Version: m.Source.Version, Name: m.Source.Path, Applied: m.State == goose.StateApplied, At: m.AppliedAt}
	}
	return states, nil
}

func newProvider(db *sql.DB, dialect string) (*goose.Provider, error) {
	tree, err := fs.Sub(files, dialect)
	if err != nil {
		return nil, fmt.Errorf("migrations of %q: %w", dialect, err)
	}
	name, opts := goose.DialectSQLite3, []goose.ProviderOption{goose.WithDisableGlobalRegistry(true)}
	if dialect == Postgres {
		// The locker tries to get the lock every second for 5 minutes, because a big migration of another replica may take that long.
		locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
		if err != nil {
			return nil, fmt.Errorf("creating the lock of the migrations: %w", err)
		}
		name, opts = goose.DialectPostgres, append(opts, goose.WithSessionLocker(locker))
	}
	p, err := goose.NewProvider(name, db, tree, opts...)
	if err != nil {
		return nil, fmt.Errorf("migrations of %q: %w", dialect, err)
	}
	return p, nil
}
