package store_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// openSingleConn returns a ledger with one connection and a pool p with one slot. If code in a transaction needs a second connection, for
// example to prepare a statement, it waits until its timeout.
func openSingleConn(t *testing.T) *ledger {
	t.Helper()
	l := migrateOpened(t)(store.OpenPostgres(t.Context(), sharedPostgres.NewLedger(t), store.Options{MaxOpenConns: 1}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, _, err := l.PutPool(ctx, "op", "p", store.PoolSpec{Capacity: 1, Lease: time.Hour})
	l.must(err)
	return l
}

// runTaskPerDevice runs one task of each device, one device after the other. For each task it reads the view, claims, redelivers and ends
// the task.
func (l *ledger) runTaskPerDevice(ids []int64, devices []string) {
	l.Helper()
	ctx, cancel := context.WithTimeout(l.Context(), time.Minute)
	defer cancel()
	for i, d := range devices {
		_, err := l.DeviceViews(ctx, []string{d})
		l.must(err)
		outcomes, err := l.Claim(ctx, []store.Claim{l.newClaim(ids[i], d, "p", 0)}, true)
		l.must(err)
		g := outcomes[0].Grant
		_, err = l.Redeliver(ctx, g.Task, g.Token)
		l.must(err)
		r := store.Result{Device: d, Task: g.Task, Token: g.Token, Cause: store.BySuccess}
		if o := l.RecordResults(ctx, []store.Result{r}, settleEnding)[0]; o.Kind != store.ResultRecorded {
			l.Fatalf("outcome %+v", o)
		}
	}
}

func TestTransactionsRunPreparedStatements(t *testing.T) {
	t.Parallel()
	l := openSingleConn(t)
	devices := deviceNames(10)
	for range 3 {
		_, ids := l.queueBatch(store.Batch{Pool: "p"}, devices...)
		l.runTaskPerDevice(ids, devices)
	}
	rows, err := l.DB().QueryContext(t.Context(), `SELECT statement, generic_plans FROM pg_prepared_statements`)
	l.must(err)
	defer rows.Close()
	planned := map[string]bool{"INSERT INTO grants": false, "UPDATE grants AS g SET token": false, "DELETE FROM grants": false, "FOR UPDATE": false}
	for rows.Next() {
		var text string
		var generic int
		l.must(rows.Scan(&text, &generic))
		for part := range planned {
			planned[part] = planned[part] || strings.Contains(text, part) && generic >= 20
		}
		if strings.HasPrefix(text, "COPY") || strings.HasPrefix(text, "SET") {
			t.Errorf("prepared and kept: %s", text)
		}
	}
	l.must(rows.Err())
	for part, once := range planned {
		if !once {
			t.Errorf("%s is planned again and again", part)
		}
	}
}

// TestPlansSuitTablesThatGrow checks query plans that Postgres made while the tables were small. After the tables have grown, these plans
// must not read whole tables, because Postgres plans again only after new statistics, which may come late.
func TestPlansSuitTablesThatGrow(t *testing.T) {
	t.Parallel()
	l := openSingleConn(t)
	for _, table := range []string{"tasks", "grants", "batches", "pools"} {
		l.exec("ALTER TABLE " + table + " SET (autovacuum_enabled = off)")
	}
	devices := deviceNames(20)
	_, ids := l.queueBatch(store.Batch{Pool: "p"}, devices...)
	l.runTaskPerDevice(ids[:10], devices[:10])
	const others = 5000
	l.queueBatch(store.Batch{Pool: "p"}, deviceNames(others + 1000)[1000:]...)
	before := l.taskRowsRead()
	l.runTaskPerDevice(ids[10:], devices[10:])
	if read := l.taskRowsRead() - before; read > others {
		t.Fatalf("ten lives read %d tasks", read)
	}
}

// taskRowsRead returns how many rows of the table tasks have been read so far by all plans.
func (l *ledger) taskRowsRead() (n int) {
	l.Helper()
	l.exec("SELECT pg_stat_force_next_flush()")
	l.must(l.DB().QueryRowContext(l.Context(), `
		SELECT sum(i.idx_tup_read) + min(t.seq_tup_read)
		FROM pg_stat_user_indexes i JOIN pg_stat_user_tables t USING (relid) WHERE t.relname = 'tasks'`).Scan(&n))
	return n
}

// TestFirstCallersDoNotWaitInACircle lets many callers use a new replica at once, before it has prepared any statement. These callers wait
// for each other's locks in the database. If a caller also waited for a statement that another caller is preparing, there could be a
// deadlock. So each call must end.
func TestFirstCallersDoNotWaitInACircle(t *testing.T) {
	t.Parallel()
	dsn := sharedPostgres.NewLedger(t)
	rounds := 40
	if testing.Short() {
		rounds = 5
	}
	for round := range rounds {
		l := migrateOpened(t)(store.OpenPostgres(t.Context(), dsn, longTimeouts()))
		device := fmt.Sprint("new-", round)
		var wait sync.WaitGroup
		for range 20 {
			wait.Go(func() {
				if _, err := l.EnsureDevices(l.Context(), device); err != nil {
					l.Errorf("round %d: %v", round, err)
				}
			})
		}
		wait.Wait()
		l.must(l.Close())
	}
}
