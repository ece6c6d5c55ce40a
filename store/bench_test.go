package store_test

import (
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

// BenchmarkGrantAndResult measures what the ledger does for one task: it reads a view, grants a claim and records a result. reporters is
// the number of goroutines that do this concurrently. batch is the number of devices whose reports share one call.
func BenchmarkGrantAndResult(b *testing.B) {
	for _, c := range []struct{ reporters, batch int }{{1, 1}, {16, 1}, {1, 16}, {4, 16}} {
		b.Run(fmt.Sprintf("postgres/reporters=%d/batch=%d", c.reporters, c.batch), func(b *testing.B) {
			benchmarkTasks(b, openPostgres(b), c.reporters, c.batch)
		})
	}
	b.Run("sqlite/reporters=4/batch=1", func(b *testing.B) { benchmarkTasks(b, openSQLite(b), 4, 1) })
}

func benchmarkTasks(b *testing.B, l *ledger, reporters, reportsPerCall int) {
	b.Helper()
	const pools = 4
	per := b.N/pools + reportsPerCall + 1
	tasks := map[string][]int64{}
	devices := deviceNames(per)
	for p := range pools {
		pool := fmt.Sprint("p", p)
		l.putPool(pool, 1000)
		for i := range devices {
			devices[i] = fmt.Sprintf("%s-%06d", pool, i)
		}
		_, tasks[pool] = l.queueBatch(store.Batch{Pool: pool}, devices...)
	}
	l.exec("ANALYZE")
	var next atomic.Int64
	b.ResetTimer()
	done := make(chan error, reporters)
	for r := range reporters {
		go func() {
			for {
				n := int(next.Add(int64(reportsPerCall))) - reportsPerCall
				if n >= b.N {
					done <- nil
					return
				}
				if err := l.runTasks(tasks, r, n, min(reportsPerCall, b.N-n), pools); err != nil {
					done <- err
					return
				}
			}
		}()
	}
	for range reporters {
		must.Succeed(b, <-done)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
}

// runTasks reads the views of the tasks first to first+count-1, claims the tasks and ends them. Each reporter has its own slots, beginning
// at slot reporter*20.
func (l *ledger) runTasks(tasks map[string][]int64, reporter, first, count, pools int) error {
	var devices []string
	var claims []store.Claim
	for i := range count {
		pool, k := fmt.Sprint("p", (first+i)%pools), (first+i)/pools
		device := fmt.Sprintf("%s-%06d", pool, k)
		devices = append(devices, device)
		claims = append(claims, l.newClaim(tasks[pool][k], device, pool, reporter*20+i))
	}
	if _, err := l.DeviceViews(l.Context(), devices); err != nil {
		return err
	}
	outcomes, err := l.Claim(l.Context(), claims, true)
	if err != nil {
		return err
	}
	var results []store.Result
	for i, o := range outcomes {
		if o.Status != store.ClaimGranted {
			return fmt.Errorf("claim %+v: status %d", claims[i], o.Status)
		}
		results = append(results, store.Result{Device: devices[i], Task: o.Grant.Task, Token: o.Grant.Token, Cause: store.BySuccess, Output: []byte(`{"down_mbps": 94.1}`)})
	}
	for _, o := range l.RecordResults(l.Context(), results, settleEnding) {
		if o.Err != nil || o.Kind != store.ResultRecorded {
			return fmt.Errorf("result %+v", o)
		}
	}
	return nil
}

// BenchmarkClaimsBesideALongTransaction measures 60 claims in one transaction while a dump reads an old snapshot. Because of the dump, no
// vacuum can remove the row versions of ended grants from the table of grants.
func BenchmarkClaimsBesideALongTransaction(b *testing.B) {
	for _, ended := range []int{0, 3600, 18_000} {
		b.Run(fmt.Sprintf("ended=%d", ended), func(b *testing.B) {
			const slots = 60
			l := openPostgres(b)
			l.putPool("p", slots)
			devices := deviceNames(ended + 100*slots)
			_, tasks := l.queueBatch(store.Batch{Pool: "p"}, devices...)
			dump, err := l.DB().BeginTx(b.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
			l.must(err)
			defer func() { l.must(dump.Rollback()) }()
			_, err = dump.ExecContext(b.Context(), `SET LOCAL idle_in_transaction_session_timeout = 0`)
			l.must(err)
			l.must(dump.QueryRowContext(b.Context(), `SELECT count(*) FROM grants`).Scan(new(int)))
			claims, results := make([]store.Claim, slots), make([]store.Result, slots)
			next := 0
			claim := func() {
				for i := range claims {
					claims[i] = l.newClaim(tasks[next], devices[next], "p", i)
					next++
				}
				outcomes, err := l.Claim(b.Context(), claims, true)
				l.must(err)
				for i, o := range outcomes {
					results[i] = store.Result{Device: claims[i].Device, Task: o.Grant.Task, Token: o.Grant.Token, Cause: store.BySuccess}
				}
			}
			end := func() {
				for _, o := range l.RecordResults(b.Context(), results, settleEnding) {
					l.must(o.Err)
				}
			}
			for next < ended {
				claim()
				end()
			}
			for b.Loop() {
				claim()
				b.StopTimer()
				end()
				b.StartTimer()
			}
		})
	}
}

// BenchmarkSealEvents measures the sealing of events like those of grants and results, in blocks of 1,000, and their check.
func BenchmarkSealEvents(b *testing.B) {
	for _, events := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("events=%d", events), func(b *testing.B) {
			l := openPostgres(b)
			l.exec(`INSERT INTO events (at, kind, actor, actor_kind, pool, batch, task, device, token, detail)
				SELECT clock_timestamp(), 'task.granted', 'dev-' || n, 'device', 'ar:330100', 31, n, 'dev-' || n, n, 'slot=17' FROM generate_series(1, $1) AS n`, events)
			for b.Loop() {
				l.sealBlocks(int64(events), 1000)
				b.StopTimer()
				if page, broken := l.checkSeals(); len(broken) > 0 || len(page.Seals) != events/1000+1 {
					b.Fatalf("%d broken, %d seals", len(broken), len(page.Seals))
				}
				l.exec(`DELETE FROM event_seals WHERE last > 0`)
				b.StartTimer()
			}
		})
	}
}
