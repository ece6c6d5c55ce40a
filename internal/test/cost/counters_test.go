package cost

import (
	"database/sql"
	"fmt"
	"maps"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/migrations"
)

// These are the names of the figures, in the order of testdata/cost.txt.
const (
	statements    = "statements"
	commits       = "transactions that write"
	walBytes      = "bytes of WAL"
	redisScripts  = "Redis scripts"
	redisCommands = "Redis commands in all"
	allocations   = "allocations"
)

// countedDatabase is a database on a Postgres server that counts the statements.
type countedDatabase struct {
	t       *testing.T
	dsn     string
	statsDB *sql.DB // a connection to another database of the server
	name    string
}

// newCountedDatabase starts a Postgres server that writes nothing on its own. It does not vacuum, and does not log running transactions for
// standbys. It does not log whole pages after a checkpoint, because checkpoints happen at varying times.
func newCountedDatabase(t *testing.T) *countedDatabase {
	t.Helper()
	server := servers.StartPostgres(t)
	look, err := sql.Open("postgres", server.DSN("postgres"))
	must.Succeed(t, err)
	t.Cleanup(func() { _ = look.Close() })
	l := &countedDatabase{t: t, statsDB: look}
	var there bool
	must.Succeed(t, look.QueryRowContext(t.Context(), "SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_stat_statements')").Scan(&there))
	if !there && os.Getenv("CI") == "" {
		t.Skip("pg_stat_statements is not installed")
	}
	for setting, value := range map[string]string{
		"shared_preload_libraries": "pg_stat_statements",
		"autovacuum":               "off", "wal_level": "minimal", "max_wal_senders": "0", "full_page_writes": "off",
	} {
		l.execSQL("ALTER SYSTEM SET " + setting + " = '" + value + "'")
	}
	server.Stop()
	server.Start()
	l.execSQL("CREATE EXTENSION pg_stat_statements")
	l.dsn = server.NewDatabase(t)
	l.name = regexp.MustCompile(`/(\w+)\?`).FindStringSubmatch(l.dsn)[1]
	db, err := sql.Open("postgres", l.dsn)
	must.Succeed(t, err)
	defer func() { _ = db.Close() }()
	_, err = migrations.Up(t.Context(), db, migrations.Postgres)
	must.Succeed(t, err)
	return l
}

func (l *countedDatabase) execSQL(text string) {
	l.t.Helper()
	if _, err := l.statsDB.ExecContext(l.t.Context(), text); err != nil {
		l.t.Fatalf("%s: %v", text, err)
	}
}

type counterValues struct {
	statements map[string]int64
	commands   map[string]int64
	xid, wal   int64
	mallocs    uint64
}

func (p *testDispatcher) readCounters() (s counterValues) {
	p.t.Helper()
	row := p.ledger.statsDB.QueryRowContext(p.t.Context(), "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, pg_current_wal_insert_lsn() - '0/0'")
	must.Succeed(p.t, row.Scan(&s.xid, &s.wal))
	s.statements, s.commands = p.ledger.statementCalls(), p.commandCalls()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	s.mallocs = memory.Mallocs
	return s
}

func (l *countedDatabase) statementCalls() map[string]int64 {
	l.t.Helper()
	rows, err := l.statsDB.QueryContext(l.t.Context(), `SELECT query, sum(calls) FROM pg_stat_statements JOIN pg_database d ON d.oid = dbid WHERE d.datname = $1 GROUP BY query`, l.name)
	must.Succeed(l.t, err)
	defer rows.Close()
	calls := make(map[string]int64)
	for rows.Next() {
		var text string
		var n int64
		must.Succeed(l.t, rows.Scan(&text, &n))
		calls[strings.Join(strings.Fields(text), " ")] += n
	}
	must.Succeed(l.t, rows.Err())
	return calls
}

// commandCalls returns how often Redis has run each command. It omits the commands that open connections and the commands of this test. It
// also omits CLUSTER: the client reads the topology periodically, so its count depends on the speed of the machine.
func (p *testDispatcher) commandCalls() map[string]int64 {
	p.t.Helper()
	info, err := p.redis.Info(p.t.Context(), "commandstats").Result()
	must.Succeed(p.t, err)
	calls := make(map[string]int64)
	for line := range strings.Lines(info) {
		var n int64
		name, rest, found := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
		if _, err := fmt.Sscanf(rest, "calls=%d", &n); !found || err != nil {
			continue
		}
		if name, _, _ := strings.Cut(name, "|"); !slices.Contains([]string{"info", "hello", "client", "select", "ping", "auth", "cluster"}, name) {
			calls[name] += n
		}
	}
	return calls
}

// measureCost calls do(0) to do(n-1) and returns the average cost of one call. During the calls the garbage collector is off, because it empties
// memory pools that would then be filled again.
func (p *testDispatcher) measureCost(name string, n int, do func(i int)) []figure {
	p.t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	before := p.readCounters()
	empty := p.readCounters() // the cost of reading the counters
	for i := range n {
		do(i)
	}
	after := p.readCounters()
	fmt.Fprintf(&p.callCounts, "%s\n", name)
	queried, commanded := p.sumCalls(before.statements, after.statements, n), p.sumCalls(before.commands, after.commands, n)
	scripts := int64(0)
	for _, command := range []string{"eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro"} {
		scripts += after.commands[command] - before.commands[command]
	}
	per := func(sum int64) float64 { return float64(sum) / float64(n) }
	return []figure{
		{name, statements, per(queried)},
		{name, commits, per(after.xid - before.xid)},
		{name, walBytes, per(after.wal - empty.wal)},
		{name, redisScripts, per(scripts)},
		{name, redisCommands, per(commanded)},
		{name, allocations, per(int64(after.mallocs-empty.mallocs) - int64(empty.mallocs-before.mallocs))}, //nolint:gosec // far below 2^63
	}
}

// sumCalls returns how many calls were made between two readings of the counters. It also writes the number of
// calls of each statement or command to p.callCounts.
func (p *testDispatcher) sumCalls(before, after map[string]int64, n int) (sum int64) {
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if calls := after[name] - before[name]; calls > 0 {
			sum += calls
			fmt.Fprintf(&p.callCounts, "  %s x %.150s\n", formatValue(float64(calls)/float64(n)), name)
		}
	}
	return sum
}
