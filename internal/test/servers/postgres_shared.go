package servers

import (
	"database/sql"
	"sync"
	"testing"

	"github.com/fleetslots/dispatcher/migrations"
)

// SharedPostgres is one server for all the tests of a package. Starting a server takes seconds, but creating a
// database in it (NewDatabase) takes milliseconds. The zero value is ready to use. TestMain closes it:
//
//	func TestMain(m *testing.M) {
//		code := m.Run()
//		shared.Close()
//		os.Exit(code)
//	}
//
// Tests that stop or kill the server start their own server (StartPostgres).
type SharedPostgres struct {
	mu     sync.Mutex
	server *PostgresServer
	remove func()
	schema sync.Once // creates the database that is copied for each ledger
}

// NewDatabase creates an empty database for one test and returns its DSN. The
// first call starts the server.
func (s *SharedPostgres) NewDatabase(tb testing.TB) string {
	tb.Helper()
	return s.Server(tb).NewDatabase(tb)
}

// ledgerSchema is the name of the database that contains only the schema.
const ledgerSchema = "ledger_schema"

// NewLedger creates a database that has the schema of the ledger, for one test, and returns its DSN. The database
// is a copy of a migrated one, which takes a tenth of the time of a migration.
func (s *SharedPostgres) NewLedger(tb testing.TB) string {
	tb.Helper()
	server := s.Server(tb)
	s.schema.Do(func() {
		server.createDatabase(tb, ledgerSchema, "template0")
		db, err := sql.Open("postgres", server.DSN(ledgerSchema))
		if err != nil {
			tb.Fatal(err)
		}
		_, err = migrations.Up(tb.Context(), db, migrations.Postgres)
		_ = db.Close() // a database with connections cannot be copied
		if err != nil {
			tb.Fatal(err)
		}
	})
	return server.copyDatabase(tb, ledgerSchema)
}

// Server returns the running server. The first call starts it.
func (s *SharedPostgres) Server(tb testing.TB) *PostgresServer {
	tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		s.server, s.remove = startPostgres(tb, smallPostgres)
	}
	return s.server
}

// Close ends the server if it was started.
func (s *SharedPostgres) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		return
	}
	s.server.Kill()
	s.remove()
	s.server = nil
}
