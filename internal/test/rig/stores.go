package rig

import (
	"database/sql"
	"path/filepath"
	"testing"

	backends "github.com/fleetslots/dispatcher/internal/test/backends"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/store"
)

// Servers are the Postgres and the Redis that all tests of a package share. The zero value is ready to use: the first
// test that needs a server starts it. TestMain calls Close after all tests.
type Servers struct {
	Postgres servers.SharedPostgres
	Redis    servers.SharedRedis
}

// Close ends the servers that were started.
func (s *Servers) Close() {
	s.Postgres.Close()
	s.Redis.Close()
}

// Stores are the ledger and the Redis of a replica.
type Stores struct {
	Ledger  *store.Store
	RedisAt servers.RedisAt
	DSN     string // address of the ledger in Postgres; empty for an embedded ledger
}

// NewStores returns an empty ledger and an empty database of Redis, which no other test uses.
func (s *Servers) NewStores(t *testing.T) Stores {
	t.Helper()
	dsn := s.Postgres.NewLedger(t)
	return Stores{Ledger: backends.OpenPostgres(t, dsn), RedisAt: s.Redis.NewDatabase(t), DSN: dsn}
}

// EmbeddedStores returns the stores of the embedded mode: an empty ledger in SQLite and an in-process Redis.
func EmbeddedStores(t *testing.T) Stores {
	t.Helper()
	return Stores{Ledger: backends.OpenSQLite(t, filepath.Join(t.TempDir(), "ledger.db")), RedisAt: servers.InProcessRedis(t)}
}

// RunOnBoth runs a test once on the embedded stores and once on real servers. It is for tests of a promise, and for
// tests in which SQLite and Postgres work differently.
func (s *Servers) RunOnBoth(t *testing.T, test func(t *testing.T, at Stores)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(t, EmbeddedStores(t))
	})
	s.runOnServers(t, test)
}

// Run runs a test on real servers, and in the long suite also on the embedded stores.
func (s *Servers) Run(t *testing.T, test func(t *testing.T, at Stores)) {
	t.Helper()
	if !testing.Short() {
		s.RunOnBoth(t, test)
		return
	}
	s.runOnServers(t, test)
}

func (s *Servers) runOnServers(t *testing.T, test func(t *testing.T, at Stores)) {
	t.Helper()
	t.Run("servers", func(t *testing.T) {
		t.Parallel()
		test(t, s.NewStores(t))
	})
}

// OpenDB opens the database of a ledger in Postgres directly, as another program would.
func (s Stores) OpenDB(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("postgres", s.DSN)
	must.Succeed(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}
