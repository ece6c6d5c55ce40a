package bench

import (
	"database/sql"
	"flag"
	"strings"

	_ "github.com/lib/pq" // the driver with which pg_stat_statements is read
)

var statements = flag.Bool("statements", false, "show what the statements of each row cost; costs a tenth itself") //nolint:gochecknoglobals // a flag of the test

// enableStatementStats makes Postgres collect statistics of its statements. It restarts Postgres.
func (s *testbed) enableStatementStats() {
	s.runSQL(`ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'`)
	s.postgres.Stop()
	s.postgres.Start()
	s.runSQL("CREATE EXTENSION pg_stat_statements")
}

// resetStatementStats deletes the statistics of statements that Postgres has collected so far.
func (s *testbed) resetStatementStats() { s.runSQL("SELECT pg_stat_statements_reset()") }

// printSlowestStatements prints the statements on which Postgres spent the most time. count is the number of cycles
// by which the times are divided.
func (s *testbed) printSlowestStatements(count int) {
	for _, r := range s.runSQL(`SELECT format('%8s calls %9s ms %8s us each %8s us of one  %6s bytes of WAL  %s', calls, total_exec_time::numeric(12,1),
		(total_exec_time*1000/calls)::numeric(12,1), (total_exec_time*1000/$1)::numeric(12,1), wal_bytes/$1, left(regexp_replace(query, '\s+', ' ', 'g'), 120))
		FROM pg_stat_statements ORDER BY total_exec_time DESC LIMIT 25`, max(count, 1)) {
		printNow("%s", r)
	}
}

func (s *testbed) runSQL(text string, args ...any) (all []string) {
	db, err := sql.Open("postgres", s.dsn)
	if err != nil {
		s.t.Fatal(err)
	}
	defer db.Close()
	if !strings.HasPrefix(text, "SELECT format") {
		if _, err := db.ExecContext(s.ctx, text, args...); err != nil {
			s.t.Fatalf("%s: %v", text, err)
		}
		return nil
	}
	rows, err := db.QueryContext(s.ctx, text, args...)
	if err != nil {
		s.t.Fatalf("%s: %v", text, err)
	}
	defer rows.Close()
	for rows.Next() {
		var one string
		if err := rows.Scan(&one); err != nil {
			s.t.Fatal(err)
		}
		all = append(all, one)
	}
	if err := rows.Err(); err != nil {
		s.t.Fatal(err)
	}
	return all
}
