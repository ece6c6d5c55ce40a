package store_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// openWarm returns a ledger with at most six connections. Two calls of Warm have opened three of them, not more than
// two at a time, and prepared the statements of reports on them.
func openWarm(t *testing.T) *ledger {
	t.Helper()
	l := migrateOpened(t)(store.OpenPostgres(t.Context(), sharedPostgres.NewLedger(t), store.Options{MaxOpenConns: 6}))
	for _, want := range []int{2, 3} {
		l.must(l.Warm(t.Context()))
		if open := l.DB().Stats().OpenConnections; open != want {
			t.Fatalf("%d connections are open, want %d", open, want)
		}
	}
	return l
}

// holdConns occupies n connections of the ledger until the test ends, and returns them.
func (l *ledger) holdConns(n int) []*sql.Conn {
	l.Helper()
	all := make([]*sql.Conn, n)
	for i := range all {
		var err error
		all[i], err = l.DB().Conn(l.Context())
		l.must(err)
		l.Cleanup(func() { _ = all[i].Close() })
	}
	return all
}

// minExecutions reads how often each statement that every report needs was executed on conn, and returns the lowest of these numbers. A
// statement without a generic plan counts as 0.
func (l *ledger) minExecutions(conn *sql.Conn) int {
	l.Helper()
	rows, err := conn.QueryContext(l.Context(), `SELECT statement, generic_plans + custom_plans, generic_plans > 0 FROM pg_prepared_statements`)
	l.must(err)
	defer rows.Close()
	found := map[string]int{"RECURSIVE": 0, "INSERT INTO grants": 0, "SET token": 0, "FOR UPDATE OF t": 0, "DELETE FROM grants": 0}
	for rows.Next() {
		var text string
		var times int
		var planned bool // whether the statement has a generic plan
		l.must(rows.Scan(&text, &times, &planned))
		for part := range found {
			if strings.Contains(text, part) && planned {
				found[part] = times
			}
		}
	}
	l.must(rows.Err())
	least := found["RECURSIVE"]
	for _, times := range found {
		least = min(least, times)
	}
	return least
}

// wantPlans checks that three open connections have plans for the statements of reports.
func (l *ledger) wantPlans() {
	l.Helper()
	for i, conn := range l.holdConns(3) {
		if l.minExecutions(conn) < 6 {
			l.Errorf("connection %d has no plans", i)
		}
	}
}

// TestWarmConnectionsHavePlans checks that all statements of a report are prepared and planned on a new connection before the first report
// uses it.
func TestWarmConnectionsHavePlans(t *testing.T) {
	t.Parallel()
	l := openWarm(t)
	l.wantPlans()
}

func TestAConnectionIsWarmedUpOnce(t *testing.T) {
	t.Parallel()
	l := openWarm(t)
	sum := func() (n int) {
		for _, conn := range l.holdConns(3) {
			n += l.minExecutions(conn)
			l.must(conn.Close())
		}
		return n
	}
	before := sum()
	l.must(l.Warm(t.Context()))
	if after := sum(); after != before {
		t.Errorf("%d runs, %d before", after, before)
	}
}

func TestConnectionsThatEndedAreReplaced(t *testing.T) {
	t.Parallel()
	l := openWarm(t)
	l.DB().SetMaxIdleConns(0) // This closes the idle connections.
	l.DB().SetMaxIdleConns(6)
	for range 2 {
		l.must(l.Warm(t.Context()))
	}
	l.wantPlans()
}

// TestWarmingWaitsForNoConnection checks that Warm does not wait for connections that other calls are using.
func TestWarmingWaitsForNoConnection(t *testing.T) {
	t.Parallel()
	l := openWarm(t)
	l.holdConns(6)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l.must(l.Warm(ctx))
}

func TestWarmingChangesNothing(t *testing.T) {
	t.Parallel()
	l := openWarm(t)
	for _, table := range []string{"grants", "attempts", "tasks", "late_results", "devices", "events"} {
		var n int
		l.must(l.DB().QueryRowContext(t.Context(), "SELECT count(*) FROM "+table).Scan(&n))
		if n != 0 {
			t.Errorf("%d rows of %s", n, table)
		}
	}
	var used bool
	l.must(l.DB().QueryRowContext(t.Context(), "SELECT is_called FROM grant_token").Scan(&used))
	if used {
		t.Error("a token was drawn")
	}
}

// TestASingleConnectionIsLeftAlone checks that Warm does nothing if the ledger has only one connection, because a
// caller may need this connection.
func TestASingleConnectionIsLeftAlone(t *testing.T) {
	t.Parallel()
	for _, l := range []*ledger{openSingleConn(t), openSQLite(t)} {
		l.must(l.Warm(t.Context()))
	}
}
