package store_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

// countTasksByState counts the tasks of a batch by their state. It reads the rows of the tasks, not the stored
// counts.
func (l *ledger) countTasksByState(batch int64) map[store.TaskState]int64 {
	l.Helper()
	rows, err := l.DB().QueryContext(l.Context(), `
		SELECT CASE WHEN g.task IS NOT NULL THEN 'dispatched' ELSE t.state END AS state, count(*)
		FROM tasks t LEFT JOIN grants g ON g.task = t.id WHERE t.batch = $1 GROUP BY 1`, batch)
	l.must(err)
	defer rows.Close()
	counts := map[store.TaskState]int64{}
	for rows.Next() {
		var state store.TaskState
		var n int64
		l.must(rows.Scan(&state, &n))
		counts[state] = n
	}
	l.must(rows.Err())
	return counts
}

// foldAll calls Fold until no delta (recorded change of a count) is left. It returns the ids of the batches that Fold paused because of
// their abort rule.
func (l *ledger) foldAll() (aborted []int64) {
	l.Helper()
	for {
		n, paused, err := l.Fold(l.Context(), 1000)
		l.must(err)
		if aborted = append(aborted, paused...); n == 0 {
			return aborted
		}
	}
}

// stressedBatches is a set of batches for a test that claims, ends and counts tasks concurrently.
type stressedBatches struct {
	*ledger
	batches []store.Batch // two batches for each pool
	tasks   [][]int64     // ids of the tasks: by the index of the batch, then by the index of the device
	devices []string      // Each device has one task in each batch.
}

func (l *ledger) newStressedBatches(pools, devicesPerPool int) stressedBatches {
	l.Helper()
	m := stressedBatches{ledger: l, devices: deviceNames(devicesPerPool)}
	for i := range pools {
		l.putPool(fmt.Sprint("p", i), devicesPerPool)
		for _, attempts := range []int{1, 2} {
			b, ids := l.queueBatch(store.Batch{Pool: fmt.Sprint("p", i), MaxAttempts: attempts}, m.devices...)
			m.batches, m.tasks = append(m.batches, b), append(m.tasks, ids)
		}
	}
	return m
}

// claimAndEndTasks claims random tasks of the batches and ends most of them with a random cause.
func (m stressedBatches) claimAndEndTasks(random *rand.Rand, rounds int) {
	causes := []store.EndCause{store.BySuccess, store.ByFailure, store.ByReject, store.ByReturn}
	for range rounds {
		i, n := random.IntN(len(m.batches)), random.IntN(len(m.devices))
		outcomes, err := m.Claim(m.Context(), []store.Claim{m.newClaim(m.tasks[i][n], m.devices[n], m.batches[i].Pool, n)}, true)
		if err != nil {
			m.Error(err)
			return
		}
		if outcomes[0].Status != claimGranted || random.IntN(5) == 0 { // Some devices never report.
			continue
		}
		g := outcomes[0].Grant
		r := store.Result{Device: g.Device, Task: g.Task, Token: g.Token, Cause: causes[random.IntN(len(causes))]}
		if o := m.RecordResults(m.Context(), []store.Result{r}, settleEnding)[0]; o.Err != nil {
			m.Error(o.Err)
		}
		if random.IntN(10) == 0 {
			if _, err := m.CancelTask(m.Context(), "op", m.tasks[i][random.IntN(len(m.devices))]); err != nil {
				m.Error(err)
			}
		}
	}
}

// checkSums reads the counts of all batches once and checks that no count is negative and that the counts of each batch add up to its
// total.
func (m stressedBatches) checkSums() error {
	list, err := m.Batches(m.Context(), store.BatchFilter{}, 0, 100)
	for _, b := range list {
		sum := int64(0)
		for _, n := range b.Counts {
			if sum += n; n < 0 {
				m.Errorf("batch %d: %v", b.ID, b.Counts)
			}
		}
		if sum != int64(len(m.devices)) {
			m.Errorf("batch %d: %v adds up to %d", b.ID, b.Counts, sum)
		}
	}
	return err
}

// compareCounts checks that the stored counts of all batches and pools equal the counts of the task rows. when describes the moment in the
// error message.
func (m stressedBatches) compareCounts(when string) {
	m.Helper()
	for _, b := range m.batches {
		got, err := m.Batch(m.Context(), b.ID)
		m.must(err)
		if diff := cmp.Diff(m.countTasksByState(b.ID), got.Counts); diff != "" {
			m.Errorf("batch %d, %s: %s", b.ID, when, diff)
		}
	}
	stats, err := m.PoolStats(m.Context())
	m.must(err)
	for i, stat := range stats {
		want := m.countTasksByState(m.batches[2*i].ID)
		for state, n := range m.countTasksByState(m.batches[2*i+1].ID) {
			want[state] += n
		}
		if diff := cmp.Diff(want, stat.Tasks); diff != "" {
			m.Errorf("pool %s, %s: %s", stat.Pool, when, diff)
		}
	}
}

// TestCountsAreThoseOfAFullCount runs claims, results of every kind, lapses of leases, cancels and folds concurrently. In every reading,
// the counts of each batch must add up. At the end, the counts must equal those of all task rows.
func TestCountsAreThoseOfAFullCount(t *testing.T) {
	t.Parallel()
	rounds := 60
	if testing.Short() {
		rounds = 20
	}
	runOnEachDialect(t, func(l *ledger) {
		m := l.newStressedBatches(3, 60)
		var work, beside sync.WaitGroup
		for w := range 4 {
			work.Go(func() { m.claimAndEndTasks(rand.New(rand.NewPCG(uint64(w), 1)), rounds) })
		}
		var over atomic.Bool
		fold := func() error {
			_, _, err := l.Fold(l.Context(), 3)
			return err
		}
		for _, act := range []func() error{fold, fold, m.checkSums} { // Two replicas fold.
			beside.Go(func() {
				for !over.Load() {
					if err := act(); err != nil {
						l.Error(err)
						return
					}
				}
			})
		}
		work.Wait()
		for _, r := range l.reapAll() { // Each of the lost tasks succeeds late.
			l.recordResult(r.Grant, store.BySuccess, "")
		}
		_, err := l.CancelBatch(l.Context(), "op", m.batches[0].ID)
		l.must(err)
		_, err = l.EndCancelled(l.Context(), 1000)
		l.must(err)
		over.Store(true)
		beside.Wait()
		m.compareCounts("as it is")
		l.foldAll()
		m.compareCounts("folded")
		if n := l.countRows("batch_deltas"); n != 0 {
			l.Errorf("%d changes are not folded", n)
		}
	})
}

// TestTotalIsOfTheSnapshotOfTheCounts checks batches whose total changes after the batches were read and before their counts are read: a lease
// is opened and granted, tasks are deleted, or the batch is deleted. The counts must still add up to the total.
func TestTotalIsOfTheSnapshotOfTheCounts(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 2)
		batch, ids := l.queueBatch(store.Batch{Pool: "p"}, "a", "b")
		l.mustGrant(ids[0], "a", "p", 0)
		l.recordResult(l.mustGrant(ids[1], "b", "p", 1), store.BySuccess, "")
		const gone = 1 << 40
		l.exec(`INSERT INTO batch_deltas (batch, pool, state, n) VALUES ($1, 'p', 'succeeded', -1)`, gone)
		read := []store.Batch{{ID: batch.ID, Total: 1}, {ID: gone, Total: 1}}
		l.must(l.FillCounts(l.Context(), read))
		want := []store.Batch{
			{ID: batch.ID, Total: 2, Counts: map[store.TaskState]int64{store.Dispatched: 1, store.Succeeded: 1}, Recent: 1},
			{ID: gone, Counts: map[store.TaskState]int64{}},
		}
		if diff := cmp.Diff(want, read); diff != "" {
			l.Error(diff)
		}
	})
}

// TestResultsDoNotWaitForFolding records two results of one batch while another replica folds the counts for a long time. The results must
// not wait for the lock of that replica on the row of counts.
func TestResultsDoNotWaitForFolding(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 5)
	b, ids := l.queueBatch(store.Batch{Pool: "p"}, "a", "b", "c")
	l.recordResult(l.mustGrant(ids[0], "a", "p", 0), store.BySuccess, "")
	l.foldAll()
	tx, err := l.DB().BeginTx(l.Context(), nil)
	l.must(err)
	defer tx.Rollback()
	_, err = tx.ExecContext(l.Context(), `SELECT pg_advisory_xact_lock(20062, 0)`)
	l.must(err)
	_, err = tx.ExecContext(l.Context(), `SELECT * FROM batch_counts FOR UPDATE`)
	l.must(err)
	l.recordResult(l.mustGrant(ids[1], "b", "p", 0), store.BySuccess, "")
	l.recordResult(l.mustGrant(ids[2], "c", "p", 0), store.ByReject, "")
	if n, _, err := l.Fold(l.Context(), 10); n != 0 || err != nil {
		l.Fatalf("folded %d, %v beside another replica", n, err)
	}
	got, err := l.Batch(l.Context(), b.ID)
	l.must(err)
	if diff := cmp.Diff(map[store.TaskState]int64{store.Succeeded: 2, store.Failed: 1}, got.Counts); diff != "" {
		l.Fatal(diff)
	}
}

func TestRecentCountsWhatWasDone(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 5)
		b, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 1}, deviceNames(6)...)
		wantRecent := func(want int64) {
			l.Helper()
			for range 2 { // before and after folding
				got, err := l.Batch(l.Context(), b.ID)
				l.must(err)
				if got.Recent != want {
					l.Fatalf("%d done lately, want %d", got.Recent, want)
				}
				l.foldAll()
			}
		}
		causes := []store.EndCause{store.BySuccess, store.ByFailure, store.ByReturn}
		for i, cause := range causes {
			l.recordResult(l.mustGrant(ids[i], deviceNames(6)[i], "p", 0), cause, "")
		}
		_, err := l.CancelTask(l.Context(), "op", ids[5])
		l.must(err)
		wantRecent(2)                                                      // without the returned task and the cancelled task
		l.exec(`UPDATE tasks SET state = 'pending' WHERE id = $1`, ids[1]) // The task is to be tried again, but its first end still counts.
		wantRecent(2)
		l.exec(`UPDATE batch_rates SET at = at - 200000 * {ms}`)
		l.recordResult(l.mustGrant(ids[3], deviceNames(6)[3], "p", 0), store.BySuccess, "")
		wantRecent(3)
		l.exec(`UPDATE batch_rates SET at = at - 200000 * {ms}`)
		wantRecent(1)
		l.recordResult(l.mustGrant(ids[4], deviceNames(6)[4], "p", 0), store.BySuccess, "")
		wantRecent(2)
		if n := l.countRows("batch_rates"); n != 2 {
			l.Errorf("%d rows of rates, want the old ones gone", n)
		}
	})
}

func TestAbortRulePausesOnce(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 50)
		devices := deviceNames(40)
		b, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 1, Abort: &store.Abort{Failure: 0.25, Min: 8}}, devices...)
		if read, err := l.Batch(l.Context(), b.ID); err != nil || *read.Abort != (store.Abort{Failure: 0.25, Min: 8}) {
			l.Fatalf("the rule became %+v, %v", read.Abort, err)
		}
		next := 0
		end := func(successes, failures int) []int64 {
			l.Helper()
			for i := range successes + failures {
				cause := store.BySuccess
				if i >= successes {
					cause = store.ByFailure
				}
				l.recordResult(l.mustGrant(ids[next], devices[next], "p", 0), cause, "")
				next++
			}
			return l.foldAll()
		}
		if aborted := end(0, 7); aborted != nil {
			l.Fatalf("paused %v before the least number", aborted)
		}
		if aborted := end(1, 0); !slices.Equal(aborted, []int64{b.ID}) {
			l.Fatalf("paused %v, want %d", aborted, b.ID)
		}
		got, err := l.Batch(l.Context(), b.ID)
		l.must(err)
		if !got.Paused || got.PausedBy != "abort rule" || got.PauseReason != "7 of 8 failed" || got.PausedAt == nil {
			l.Fatalf("paused: %+v", got)
		}
		l.wantStatuses(l.claimAll(l.newClaim(ids[next], devices[next], "p", 0)), claimLost)
		_, err = l.ResumeBatch(l.Context(), "op", b.ID)
		l.must(err)
		// After the resume, the abort rule ignores tasks that ended before. Of the next 8 tasks, 1 fails. Of the 4 tasks after them, 2 fail, one
		// of them by a lapsed lease. So 3 of 12 tasks fail.
		if aborted := end(7, 1); aborted != nil {
			l.Fatalf("paused %v for what failed before it was resumed", aborted)
		}
		if aborted := end(2, 1); aborted != nil {
			l.Fatalf("paused %v below the share", aborted)
		}
		// A lapsed lease counts as a failure for the abort rule. A cancelled task does not count.
		_, err = l.CancelTask(l.Context(), "op", ids[39])
		l.must(err)
		l.mustGrant(ids[next], devices[next], "p", 0)
		l.reapAll()
		if aborted := l.foldAll(); !slices.Equal(aborted, []int64{b.ID}) {
			l.Fatalf("paused %v, want %d at 3 of 12", aborted, b.ID)
		}
		want := []string{
			"batch.created op tasks=40", "batch.paused abort rule 7 of 8 failed", "batch.resumed op ", "batch.paused abort rule 3 of 12 failed",
		}
		if got := l.batchEvents(b.ID); !slices.Equal(got, want) {
			l.Errorf("events %q, want %q", got, want)
		}
	})
}

func TestABatchWithoutAnAbortRuleGoesOn(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 1)
	devices := deviceNames(10)
	b, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 1}, devices...)
	for i, id := range ids {
		l.recordResult(l.mustGrant(id, devices[i], "p", 0), store.ByFailure, "")
	}
	if aborted := l.foldAll(); aborted != nil {
		l.Errorf("paused %v", aborted)
	}
	if got, err := l.Batch(l.Context(), b.ID); err != nil || got.Paused || got.Abort != nil {
		l.Errorf("%+v, %v", got, err)
	}
}

// TestCountsDoNotReadTheTasks checks that reading the counts of a batch does not read the rows of its tasks.
func TestCountsDoNotReadTheTasks(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 5)
	b, err := l.CreateBatch(l.Context(), "op", store.Batch{Pool: "p"}, tasksFor(deviceNames(5000)))
	l.must(err)
	for part := 1; part > 0; { // End and fold the whole batch.
		l.exec(`UPDATE batches SET not_after = now() - interval '1 hour'`)
		part, err = l.Expire(l.Context(), 1000)
		l.must(err)
	}
	l.foldAll()
	tasksRead := func() (n int64) {
		l.must(l.DB().QueryRowContext(l.Context(), `SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables WHERE relname = 'tasks'`).Scan(&n))
		return n
	}
	l.DB().SetMaxOpenConns(1) // The only connection reports its statistics on demand.
	settled := func() int64 {
		l.exec(`SELECT pg_stat_force_next_flush()`)
		return tasksRead()
	}
	const readings = 200
	before := settled()
	for range readings {
		if got, err := l.Batch(l.Context(), b.ID); err != nil || got.Counts[store.Expired] != 5000 {
			l.Fatalf("%v, %v", got.Counts, err)
		}
	}
	// Another session may report its statistics late, so this limit leaves room for some extra rows. The limit is half of the rows that would
	// be read if each reading counted the tasks.
	if after := settled(); after > before+readings*5000/2 {
		l.Errorf("%d tasks were read for the counts", after-before)
	}
}

// TestOldestPendingIsOfTheFirstBatchThatWaits checks that OldestPending is the age of the oldest batch that has a
// waiting task. A batch does not count if it has ended or if all its tasks are held.
func TestOldestPendingIsOfTheFirstBatchThatWaits(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 9)
	ended, a := l.queueBatch(store.Batch{Pool: "p"}, "a")
	held, b := l.queueBatch(store.Batch{Pool: "p"}, "b", "c")
	waits, c := l.queueBatch(store.Batch{Pool: "p"}, "d", "e")
	later, _ := l.queueBatch(store.Batch{Pool: "p"}, "f")
	for i, batch := range []store.Batch{ended, held, waits, later} {
		l.exec(`UPDATE batches SET created_at = {now} - $2 * {ms} WHERE id = $1`, batch.ID, (time.Duration(9-i) * time.Hour).Milliseconds())
	}
	l.recordResult(l.mustGrant(a[0], "a", "p", 0), store.BySuccess, "")
	one := l.mustGrant(b[0], "b", "p", 0)
	l.mustGrant(b[1], "c", "p", 1)
	l.mustGrant(c[0], "d", "p", 2)
	for _, want := range []time.Duration{7 * time.Hour, 8 * time.Hour} {
		for range 2 {
			stats, err := l.PoolStats(l.Context())
			l.must(err)
			if got := stats[0].OldestPending.Round(time.Hour); got != want {
				l.Errorf("the oldest waits for %s, want %s", got, want)
			}
			l.foldAll()
		}
		l.recordResult(one, store.ByReturn, "") // The task waits again.
	}
}
