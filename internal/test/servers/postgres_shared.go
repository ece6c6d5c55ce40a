package servers

import (
	"database/sql"
	"sync"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/migrations"
)

// SharedPostgres is one server for all the tests of a package. Starting a server takes seconds, but creating a
// database in it (NewDatabase) takes milliseconds. The zero value is ready to use. TestMain closes it:
//
//	func TestMain(m *testing.M) {
//		m.Run() // the code that it returns becomes the exit code
//		shared.Close()
//	}
//
// Tests that stop or kill the server start their own server (StartPostgres).
type SharedPostgres struct {
	mu        sync.Mutex
	server    *PostgresServer
	remove    func()
	originals sync.Map // the databases that NewCopy copies: a sync.Once by name
}

// NewDatabase creates an empty database for one test and returns its DSN. The
// first call starts the server.
func (s *SharedPostgres) NewDatabase(tb testing.TB) string {
	tb.Helper()
	return s.Server(tb).NewDatabase(tb)
}

// NewLedger creates a database that has the schema of the ledger, for one test, and returns its DSN. The database
// is a copy of a migrated one, which takes a tenth of the time of a migration.
func (s *SharedPostgres) NewLedger(tb testing.TB) (dsn string) {
	tb.Helper()
	return s.NewCopy(tb, "ledger_schema", func(db *sql.DB) error {
		_, err := migrations.Up(tb.Context(), db, migrations.Postgres)
		return err
	})
}

// NewCopy creates a copy of the database original for one test, and returns its DSN. The first call with this name
// creates the original and calls fill with it.
func (s *SharedPostgres) NewCopy(tb testing.TB, original string, fill func(*sql.DB) error) string {
	tb.Helper()
	server := s.Server(tb)
	once, _ := s.originals.LoadOrStore(original, &sync.Once{})
	once.(*sync.Once).Do(func() { //nolint:errcheck // the map has only values of this type
		server.createDatabase(tb, original, "template0")
		db, err := server.open(original)
		must.Succeed(tb, err)
		err = fill(db)
		_ = db.Close() // a database with connections cannot be copied
		must.Succeed(tb, err)
	})
	return server.copyDatabase(tb, original)
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
