// Package migrations holds the schema of the ledger, one tree of goose
// migrations per dialect, embedded. A migration runs in a transaction of its
// own; on Postgres a session lock makes replicas that start at once take
// turns, so each migration is applied once.
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

// The dialects.
const (
	Postgres = "postgres"
	SQLite   = "sqlite"
)

//go:embed postgres/*.sql sqlite/*.sql
var files embed.FS

// State is one migration and whether it is in force.
type State struct {
	Version int64
	Name    string // of its file
	Applied bool
	At      time.Time // zero unless applied
}

// Up applies what is missing and says how many that were: 0 when another
// replica was faster.
func Up(ctx context.Context, db *sql.DB, dialect string) (applied int, err error) {
	p, err := provider(db, dialect)
	if err != nil {
		return 0, err
	}
	results, err := p.Up(ctx)
	if err != nil {
		return 0, fmt.Errorf("applying migrations: %w", err)
	}
	return len(results), nil
}

// Down takes the newest migration back; without any it does nothing. It
// destroys what that migration added.
func Down(ctx context.Context, db *sql.DB, dialect string) error {
	p, err := provider(db, dialect)
	if err != nil {
		return err
	}
	if _, err := p.Down(ctx); err != nil && !errors.Is(err, goose.ErrNoNextVersion) {
		return fmt.Errorf("taking a migration back: %w", err)
	}
	return nil
}

// Status lists all migrations, oldest first.
func Status(ctx context.Context, db *sql.DB, dialect string) ([]State, error) {
	p, err := provider(db, dialect)
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

func provider(db *sql.DB, dialect string) (*goose.Provider, error) {
	tree, err := fs.Sub(files, dialect)
	if err != nil {
		return nil, fmt.Errorf("migrations of %q: %w", dialect, err)
	}
	name, opts := goose.DialectSQLite3, []goose.ProviderOption{goose.WithDisableGlobalRegistry(true)}
	if dialect == Postgres {
		// Tried every second for 5 minutes: as long as a big migration may take.
		locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
		if err != nil {
			return nil, fmt.Errorf("migration lock: %w", err)
		}
		name, opts = goose.DialectPostgres, append(opts, goose.WithSessionLocker(locker))
	}
	p, err := goose.NewProvider(name, db, tree, opts...)
	if err != nil {
		return nil, fmt.Errorf("migrations of %q: %w", dialect, err)
	}
	return p, nil
}
