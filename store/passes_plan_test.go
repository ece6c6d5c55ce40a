package store_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

// rowsPerPart is the number of rows that one part of a pass processes in this test. The tables have ten times as
// many rows.
const rowsPerPart = 500

// TestPassesReadWhatTheyTake checks that one part of a background pass reads few rows, whatever the statistics were when Postgres planned
// its statement. Passes empty their tables, so the statistics may say that a table is empty when it has rows again. Even with such a plan,
// a pass must not read all of its rows again for each row of the table. The fold (the pass that adds up counts) runs every 2 s, so it must
// not read more rows than it processes.
func TestPassesReadWhatTheyTake(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	conn, err := l.DB().Conn(t.Context())
	l.must(err)
	defer conn.Close()
	p := preparedStatements{ledger: l, conn: conn}
	p.exec(`SET plan_cache_mode = force_generic_plan`)
	var before []string
	for _, state := range []struct{ name, change string }{
		{"empty", `SELECT 1`},
		{"emptied unseen", backlogSQL() + `; ` + clearSQL + `; ANALYZE`}, // The tables are empty but still have pages.
		{"loaded", backlogSQL()},
		{"analyzed", `ANALYZE`},
		{"emptied", clearSQL + `; ANALYZE`}, // Postgres has statistics of the deleted rows.
		{"loaded again", backlogSQL()},
	} {
		p.execEach(state.change)
		before = append(before, state.name)
		for what, asked := range p.passStatements() {
			p.exec(fmt.Sprintf(`PREPARE %q AS %s`, what+" "+state.name, l.Text(asked.text)))
			for _, at := range before {
				p.exec(`BEGIN`)
				plan := p.explainPrepared(what+" "+at, asked.args)
				p.exec(`ROLLBACK`)
				if n := maxRowsRead(plan); n > asked.maxRows {
					t.Errorf("%s, %s, planned when it was %s: %d rows are looked at:\n%s", what, state.name, at, n, strings.Join(plan, "\n"))
				}
			}
		}
	}
}

func backlogSQL() string {
	return fmt.Sprintf(`
	INSERT INTO pools (name, capacity, lease_ms, created_at, updated_at) SELECT 'p' || n, 10, 1000, now(), now() FROM generate_series(1, 10) AS n ON CONFLICT DO NOTHING;
	INSERT INTO batches (pool, created_at, max_wait_ms, wait_until) SELECT 'p' || 1 + n %% 10, now(), 1, now() - interval '1 hour' FROM generate_series(1, %[1]d) AS n;
	INSERT INTO batch_deltas (batch, pool, state, n) SELECT id, pool, 'failed', 1 FROM batches;
	INSERT INTO batch_rates (batch, at, n) SELECT id, now() - interval '1 hour' - id * interval '1 second', 1 FROM batches;
	INSERT INTO events (at, kind, pool, batch, device, token) SELECT now() - interval '1 hour', 'task.granted', pool, id, 'd' || id, id FROM batches;
	INSERT INTO event_seals (last, after, events, at, hash) SELECT id, id - 1, 1, now() - interval '1 hour', '' FROM batches;
	INSERT INTO attempts (token, task, number, device, pool, slot, lease, granted_at, ended_at, ended_by) SELECT id, id, 1, 'd' || id, pool, 1, '', now() - interval '1 hour', now() - interval '1 hour', 'success' FROM batches;
	INSERT INTO late_results (device, task, token, known, cause, received_at) SELECT 'd' || id, id, id, true, 'success', now() - interval '1 hour' - id * interval '1 second' FROM batches;
	INSERT INTO answers (owner, key, request, answer, answered_at) SELECT id, 'k', '', '{}', now() - interval '1 hour' - id * interval '1 second' FROM batches;
	INSERT INTO token_changes (hash, at) SELECT convert_to('h' || id, 'utf8'), now() - interval '1 hour' FROM batches;
	INSERT INTO news (at, batch) SELECT now() - interval '1 hour', id FROM batches;
	INSERT INTO pool_minutes (pool, minute, granted, ended, lapsed, failed, capacity) SELECT pool, id, 1, 1, 1, 1, 1 FROM batches`, 10*rowsPerPart)
}

const clearSQL = `DELETE FROM batch_deltas; DELETE FROM batch_rates; DELETE FROM events; DELETE FROM event_seals; DELETE FROM attempts; DELETE FROM late_results;
	DELETE FROM answers; DELETE FROM token_changes; DELETE FROM news; DELETE FROM pool_minutes; DELETE FROM batches`

type passStatement struct {
	text, args string
	maxRows    int // maximum number of rows read
}

// passStatements returns the statements of the passes, with arguments for the rows that they would process now.
func (p *preparedStatements) passStatements() map[string]passStatement {
	p.Helper()
	const once = 60 * rowsPerPart // each row once, and the index entries of deleted rows
	asked := map[string]passStatement{
		"old rates":       {store.OldRatesText, fmt.Sprint(`0, `, rowsPerPart), once},
		"overdue batches": {store.OverdueText(), fmt.Sprint(`0, `, rowsPerPart), once},
	}
	for what, text := range store.RetainTexts() {
		asked["old "+what] = passStatement{text, fmt.Sprint(`0, `, rowsPerPart), once}
	}
	var deltas string
	p.must(p.conn.QueryRowContext(p.Context(), `
		SELECT format('%L, %s, %s', coalesce(json_agg(json_build_object('id', id)), '[]'), coalesce(min(id), 0), coalesce(max(id), 0))
		FROM (SELECT id FROM batch_deltas ORDER BY id LIMIT $1) AS next`, rowsPerPart).Scan(&deltas))
	for i, text := range store.FoldTexts() {
		asked[fmt.Sprint("fold ", i)] = passStatement{text, deltas, rowsPerPart}
	}
	return asked
}
