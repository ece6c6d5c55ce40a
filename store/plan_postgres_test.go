package store_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestReportsHaveOnePlan checks the queries that each report needs. In each table that grows, they must use an index by its first column,
// whatever statistics Postgres had when it planned them. It had no statistics, or statistics of empty tables, or statistics from before a
// bulk load or a mass delete.
func TestReportsHaveOnePlan(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 100)
	l.must(l.Warm(t.Context()))
	conn, err := l.DB().Conn(t.Context())
	l.must(err)
	defer conn.Close()
	p := preparedStatements{ledger: l, conn: conn}
	p.exec(`SET plan_cache_mode = force_generic_plan`)
	p.prepareAll("empty")
	p.checkPlans("empty", "empty")
	for _, state := range []struct{ name, change string }{
		{"loaded", loadSQL},
		{"analyzed", `ANALYZE`},
		{"emptied", `DELETE FROM tasks WHERE id > 10; DELETE FROM devices WHERE id > 'd1'`},
		{"analyzed empty", `VACUUM ANALYZE tasks, devices, batches`},
	} {
		p.execEach(state.change)
		p.prepareAll(state.name)
		p.checkPlans(state.name, "empty") // the plans that were made while the tables were empty
		p.checkPlans(state.name, state.name)
	}
}

const loadSQL = `
	INSERT INTO batches (pool, created_at) SELECT 'p', now() FROM generate_series(1, 300);
	INSERT INTO devices (id, created_at) SELECT 'd' || i, now() FROM generate_series(1, 5000) AS i;
	INSERT INTO tasks (batch, pool, device) SELECT 1 + i % 300, 'p', 'd' || i % 5000 FROM generate_series(1, 20000) AS i`

// preparedStatements holds the statements of reports, which are prepared on one connection.
type preparedStatements struct {
	*ledger
	conn *sql.Conn
	args map[string]string // arguments by the name of the prepared statement
}

func (p *preparedStatements) exec(text string) {
	p.Helper()
	_, err := p.conn.ExecContext(p.Context(), text)
	p.must(err)
}

// execEach runs several statements, each in its own transaction.
func (p *preparedStatements) execEach(text string) {
	for one := range strings.SplitSeq(text, ";") {
		p.exec(one)
	}
}

// prepareAll prepares once more all statements that Warm has prepared, under names that begin with state.
func (p *preparedStatements) prepareAll(state string) {
	p.Helper()
	rows, err := p.conn.QueryContext(p.Context(), `
		SELECT statement, cardinality(parameter_types) FROM pg_prepared_statements
		WHERE from_sql IS FALSE AND statement !~ '^(BEGIN|COMMIT|ROLLBACK|SET|SELECT pg_|SELECT statement)' ORDER BY statement`)
	p.must(err)
	defer rows.Close()
	texts, args := []string{}, map[string]string{}
	for rows.Next() {
		var text string
		var n int
		p.must(rows.Scan(&text, &n))
		args[fmt.Sprintf("%q", fmt.Sprint(state, " ", len(texts)))] = strings.Trim(strings.Repeat("NULL,", n), ",")
		texts = append(texts, text)
	}
	p.must(rows.Err())
	if len(texts) < 5 {
		p.Fatalf("%d statements are prepared", len(texts))
	}
	if p.args == nil {
		p.args = map[string]string{}
	}
	for i, text := range texts {
		name := fmt.Sprintf("%q", fmt.Sprint(state, " ", i))
		p.exec(`PREPARE ` + name + ` AS ` + text)
		p.args[name] = args[name]
	}
}

type planNode struct {
	Scan  string     `json:"Node Type"`
	Table string     `json:"Relation Name"`
	Index string     `json:"Index Name"`
	Cond  string     `json:"Index Cond"`
	Plans []planNode `json:"Plans"`
}

// checkPlans checks the plans that statements have in one state of the tables. It checks the statements that were prepared in the state
// preparedIn. The parameter state is the name of the present state, for errors.
func (p *preparedStatements) checkPlans(state, preparedIn string) {
	p.Helper()
	for name, args := range p.args {
		if !strings.HasPrefix(name, `"`+preparedIn+" ") {
			continue
		}
		call := name
		if args != "" {
			call += "(" + args + ")"
		}
		var text string
		p.must(p.conn.QueryRowContext(p.Context(), `EXPLAIN (FORMAT JSON) EXECUTE `+call).Scan(&text))
		var plans []struct{ Plan planNode }
		p.must(json.Unmarshal([]byte(text), &plans))
		p.checkNode(fmt.Sprintf("%s, planned %s", state, name), plans[0].Plan)
	}
}

// firstIndexColumns returns, for each index that the queries of a report may use, its first column.
func firstIndexColumns() map[string]string {
	return map[string]string{
		"tasks_pkey": "id", "tasks_of_device": "device", "batches_pkey": "id", "devices_pkey": "id", "attempts_pkey": "token", "tokens_of_device": "device", "deleted_devices_pkey": "id",
	}
}

func (p *preparedStatements) checkNode(where string, n planNode) {
	p.Helper()
	// The table grants does not grow, so it is not checked: it has at most one row for each slot.
	grows := map[string]bool{"tasks": true, "batches": true, "devices": true, "attempts": true, "tokens": true, "events": true}
	switch {
	case strings.HasSuffix(n.Scan, "Scan") && n.Index != "" && (grows[n.Table] || n.Table == ""): // A bitmap index scan has no table name.
		if first := firstIndexColumns()[n.Index]; first == "" || !strings.Contains(n.Cond, "("+first+" = ") {
			p.Errorf("%s: %s by %s: %s", where, n.Scan, n.Index, n.Cond)
		}
	case n.Scan == "Seq Scan" && grows[n.Table]:
		p.Errorf("%s: all of %s", where, n.Table)
	case n.Scan == "Limit" && len(n.Plans) > 0 && n.Plans[0].Scan == "Sort":
		p.Errorf("%s: rows are sorted, of which a few are wanted that an index has in front", where)
	}
	for _, below := range n.Plans {
		p.checkNode(where, below)
	}
}
