package migrations_test

import (
	"database/sql"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	_ "modernc.org/sqlite" // driver of the SQLite ledger

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/migrations"
)

// server is the Postgres server that all tests of this package share.
var server servers.SharedPostgres //nolint:gochecknoglobals // one cluster per test binary: TestMain ends it

func TestMain(m *testing.M) {
	m.Run()
	server.Close()
}

// replicas returns n connection pools to one empty database, one for each replica. With SQLite all n are the same pool, because SQLite
// serves one process.
func replicas(t *testing.T, dialect string, n int) []*sql.DB {
	t.Helper()
	dsn := "file:" + filepath.Join(t.TempDir(), "ledger.db")
	if dialect == migrations.Postgres {
		dsn = server.NewDatabase(t)
	}
	dbs := make([]*sql.DB, n)
	for i := range dbs {
		if i > 0 && dialect == migrations.SQLite {
			dbs[i] = dbs[0]
			continue
		}
		db, err := sql.Open(dialect, dsn)
		must.Succeed(t, err)
		t.Cleanup(func() { _ = db.Close() })
		if dialect == migrations.SQLite {
			db.SetMaxOpenConns(1)
		}
		dbs[i] = db
	}
	return dbs
}

func TestReplicasApplyEachMigrationOnce(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{migrations.Postgres, migrations.SQLite} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			dbs := replicas(t, dialect, 5)
			var applied atomic.Int64
			var wait sync.WaitGroup
			for _, db := range dbs {
				wait.Go(func() {
					n, err := migrations.Up(t.Context(), db, dialect)
					if err != nil {
						t.Error(err)
					}
					applied.Add(int64(n))
				})
			}
			wait.Wait()
			states := status(t, dbs[0], dialect)
			if len(states) == 0 || applied.Load() != int64(len(states)) {
				t.Fatalf("%d applied, want each of %d once", applied.Load(), len(states))
			}
			for _, s := range states {
				if !s.Applied || s.At.IsZero() || s.Version == 0 || s.Name == "" {
					t.Errorf("state %+v", s)
				}
			}
		})
	}
}

func TestDownTakesBackWhatUpMade(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{migrations.Postgres, migrations.SQLite} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			db := replicas(t, dialect, 1)[0]
			for range 2 {
				n, err := migrations.Up(t.Context(), db, dialect)
				if err != nil || n == 0 {
					t.Fatalf("up: %d, %v", n, err)
				}
				for range n + 1 { // one call more than there are migrations
					must.Succeed(t, migrations.Down(t.Context(), db, dialect))
				}
				for _, s := range status(t, db, dialect) {
					if s.Applied {
						t.Errorf("still applied: %+v", s)
					}
				}
				if left := leftovers(t, db, dialect); left != 0 {
					t.Errorf("%d tables, sequences or triggers left", left)
				}
			}
		})
	}
}

func TestUnknownDialect(t *testing.T) {
	t.Parallel()
	db := replicas(t, migrations.SQLite, 1)[0]
	if _, err := migrations.Up(t.Context(), db, "oracle"); err == nil {
		t.Fatal("no error")
	}
}

func status(t *testing.T, db *sql.DB, dialect string) []migrations.State {
	t.Helper()
	states, err := migrations.Status(t.Context(), db, dialect)
	must.Succeed(t, err)
	return states
}

func leftovers(t *testing.T, db *sql.DB, dialect string) (n int) {
	t.Helper()
	query := `SELECT count(*) FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' AND name NOT LIKE 'goose_%'`
	if dialect == migrations.Postgres {
		query = `SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname = 'public' AND c.relname NOT LIKE 'goose_%'`
	}
	must.Succeed(t, db.QueryRowContext(t.Context(), query).Scan(&n))
	return n
}
