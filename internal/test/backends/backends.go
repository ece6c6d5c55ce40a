// Package backends opens, for tests, the stores on which a whole dispatcher runs: the embedded stores, or stores on
// real servers. All stores have very long timeouts, which only a broken test reaches. With the timeouts of
// production, a test would fail if the machine stalls for a while. Each store is closed when its test ends.
package backends

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/redisconn"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/store"
)

// LongTimeout is a timeout that is not reached even if the machine stalls for a while.
const LongTimeout = time.Minute

// OpenSQLite opens an embedded ledger in the file at path. If the file does not exist, OpenSQLite first writes it
// as a copy of a ledger that was migrated once in this process.
func OpenSQLite(tb testing.TB, path string) *store.Store {
	tb.Helper()
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		writeEmptyLedger(tb, path)
	}
	s, err := store.OpenSQLite(tb.Context(), path)
	return closeWithTest(tb, s, err)
}

// emptyLedger returns the content of a ledger file that has the schema but no data.
var emptyLedger = sync.OnceValues(func() ([]byte, error) { //nolint:gochecknoglobals // made once per test binary
	dir, err := os.MkdirTemp("", "dispatcher-ledger-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "ledger.db")
	s, err := store.OpenSQLite(context.Background(), path)
	if err != nil {
		return nil, err
	}
	_, err = s.Migrate(context.Background())
	if err = errors.Join(err, s.Close()); err != nil { // Close moves the content of the write-ahead log into the file
		return nil, err
	}
	return os.ReadFile(path)
})

func writeEmptyLedger(tb testing.TB, path string) {
	tb.Helper()
	content, err := emptyLedger()
	if err == nil {
		err = os.WriteFile(path, content, 0o600)
	}
	must.Succeed(tb, err)
}

// OpenPostgres opens a ledger in the database dsn, which must have the schema (servers.SharedPostgres.NewLedger).
func OpenPostgres(tb testing.TB, dsn string) *store.Store {
	tb.Helper()
	s, err := store.OpenPostgres(tb.Context(), dsn, store.Options{StatementTimeout: LongTimeout, LockTimeout: LongTimeout, IdleTimeout: LongTimeout})
	return closeWithTest(tb, s, err)
}

func closeWithTest(tb testing.TB, s *store.Store, err error) *store.Store {
	tb.Helper()
	must.Succeed(tb, err)
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// OpenRedis returns a client of a test's Redis. The client is created as the program creates its own client.
func OpenRedis(tb testing.TB, target servers.RedisAt) *redisconn.Conn {
	tb.Helper()
	options := redisconn.Options(target.Addr)
	options.DB = target.DB
	options.DialTimeout, options.ReadTimeout, options.WriteTimeout, options.PoolTimeout = LongTimeout, LongTimeout, LongTimeout, LongTimeout
	client := redisconn.Open(options)
	tb.Cleanup(func() { _ = client.Close() })
	return client
}
