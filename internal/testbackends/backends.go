// Package testbackends opens, for tests, the stores that the whole dispatcher
// runs on: the embedded ones and those on real servers. All have a patience that
// only a broken test exhausts: the timeouts of production would be reached on a
// machine that stands still for a while. What is opened is closed with the test.
package testbackends

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// Patience is what no machine reaches that only stands still for a while.
const Patience = time.Minute

// SQLite is an embedded ledger at path, migrated.
func SQLite(tb testing.TB, path string) *store.Store {
	tb.Helper()
	s, err := store.OpenSQLite(tb.Context(), path)
	return opened(tb, s, err)
}

// Postgres is a ledger in the database dsn, migrated.
func Postgres(tb testing.TB, dsn string) *store.Store {
	tb.Helper()
	s, err := store.OpenPostgres(tb.Context(), dsn, store.Options{StatementTimeout: Patience, LockTimeout: Patience, IdleTimeout: Patience})
	return opened(tb, s, err)
}

func opened(tb testing.TB, s *store.Store, err error) *store.Store {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	if _, err := s.Migrate(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return s
}

// Redis is a client of the server at addr, made as the program makes its own.
func Redis(tb testing.TB, addr string) redis.UniversalClient {
	tb.Helper()
	options := slots.Options(addr)
	options.DialTimeout, options.ReadTimeout, options.WriteTimeout, options.PoolTimeout = Patience, Patience, Patience, Patience
	client := redis.NewUniversalClient(options)
	tb.Cleanup(func() { _ = client.Close() })
	return client
}
