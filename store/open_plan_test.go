package store_test

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

// TestOpenBatchesAreReadByTheirIndexes checks that the queries for open batches read few rows, whenever Postgres planned them: before there
// were rows, or after most rows were deleted.
func TestOpenBatchesAreReadByTheirIndexes(t *testing.T) {
	t.Parallel()
	const pools, batches = 300, 30 // number of pools, and of batches in each pool
	l := openPostgres(t)
	conn, err := l.DB().Conn(t.Context())
	l.must(err)
	defer conn.Close()
	p := preparedStatements{ledger: l, conn: conn}
	p.exec(`SET plan_cache_mode = force_generic_plan`)
	type name struct {
		N    int    `json:"n"`
		Name string `json:"name"`
	}
	names := make([]name, pools)
	for i := range names {
		names[i] = name{i, fmt.Sprint("p", i)}
	}
	all, err := json.Marshal(names)
	l.must(err)
	asked := map[string]struct {
		text, args string
		most       int // maximum number of rows read
	}{
		"open batches of a pool":   {store.OpenBatchesText(), `'p5', 0, 64`, batches + 2},
		"urgent batches of a pool": {store.UrgentBatchesText(), `'p5', 10`, 2},
		"pools with urgent work":   {store.PoolsWithUrgentText(), `'` + string(all) + `'`, pools},
		"pools with work":          {store.PoolsWithWorkText(), `'` + string(all) + `'`, pools},
	}
	var before []string
	for _, state := range []struct{ name, change string }{
		{"empty", `SELECT 1`},
		{"loaded", fmt.Sprintf(`
			INSERT INTO pools (name, capacity, lease_ms, created_at, updated_at) SELECT 'p' || n, 10, 1000, now(), now() FROM generate_series(0, %d) AS n;
			INSERT INTO devices (id, created_at, reach) SELECT 'd' || i, now(), 1 FROM generate_series(1, 10) AS i;
			INSERT INTO batches (pool, created_at, lane) SELECT 'p' || i %% %d, now(), CASE WHEN i %% 50 = 0 THEN 'urgent' ELSE 'normal' END FROM generate_series(1, %d) AS i;
			INSERT INTO tasks (batch, pool, device) SELECT id, pool, 'd' || id FROM batches, generate_series(1, 3)`, pools-1, pools, pools*batches)},
		{"analyzed", `ANALYZE`},
		{"emptied", `DELETE FROM tasks WHERE id > 10; VACUUM FULL ANALYZE tasks`},
		{"loaded again", `INSERT INTO tasks (batch, pool, device) SELECT id, pool, 'd' || id FROM batches, generate_series(1, 3)`},
	} {
		if state.name == "emptied" { // An open snapshot keeps the deleted rows.
			reader, err := l.DB().BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
			l.must(err)
			defer reader.Rollback()
			_, err = reader.ExecContext(t.Context(), `SELECT count(*) FROM pools`)
			l.must(err)
		}
		p.execEach(state.change)
		before = append(before, state.name)
		for what, a := range asked {
			p.exec(fmt.Sprintf(`PREPARE %q AS %s`, what+" "+state.name, l.Text(a.text)))
			for _, at := range before {
				plan := p.explainPrepared(what+" "+at, a.args)
				if n := maxRowsRead(plan); n > a.most {
					t.Errorf("%s, %s, planned when it was %s: %d rows are looked at:\n%s", what, state.name, at, n, strings.Join(plan, "\n"))
				}
			}
		}
	}
}

// explainPrepared executes a prepared statement with these arguments. It returns the plan with the actual row
// counts.
func (p *preparedStatements) explainPrepared(prepared, args string) (plan []string) {
	p.Helper()
	rows, err := p.conn.QueryContext(p.Context(), fmt.Sprintf(`EXPLAIN (ANALYZE, BUFFERS OFF) EXECUTE %q(%s)`, prepared, args))
	p.must(err)
	defer rows.Close()
	for rows.Next() {
		var line string
		p.must(rows.Scan(&line))
		plan = append(plan, line)
	}
	p.must(rows.Err())
	return plan
}
