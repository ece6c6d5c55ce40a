package store_test

import (
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

// Each test below holds a transaction open at the point at which two replicas conflict, so that the conflict happens in every run. The
// tests run on Postgres only, because SQLite has one writer and no such conflicts.

// runDuringChange makes a change in a transaction and starts the calls concurrently. It commits the change as soon as each call waits for a
// lock or has returned. waited is true if all calls waited.
func (l *ledger) runDuringChange(change string, args []any, calls ...func()) (waited bool) {
	l.Helper()
	tx, err := l.DB().BeginTx(l.Context(), nil)
	l.must(err)
	defer tx.Rollback()
	_, err = tx.ExecContext(l.Context(), l.Text(change), args...)
	l.must(err)
	done := make(chan struct{})
	var running sync.WaitGroup
	for _, call := range calls {
		running.Go(call)
	}
	go func() {
		defer close(done)
		running.Wait()
	}()
	l.awaitCondition(func() bool {
		select {
		case <-done:
			return true
		default:
			waited = l.countLockWaits() == len(calls)
			return waited
		}
	})
	l.must(tx.Commit())
	<-done
	return waited
}

// countLockWaits returns the number of statements in this database that wait for a lock.
func (l *ledger) countLockWaits() (n int) {
	err := l.DB().QueryRowContext(l.Context(),
		`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n)
	l.must(err)
	return n
}

func TestAGrantRenewedMeanwhileIsNotReaped(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 1)
	_, ids := l.queueBatch(store.Batch{Pool: "p", Lease: time.Millisecond}, "a")
	l.mustGrant(ids[0], "a", "p", 0)
	lapses := l.lapsesAt(l.awaitLapsed())
	l.runDuringChange(`UPDATE grants SET lease_until = {now} + 60000 * {ms} WHERE task = $1`, []any{ids[0]}, func() {
		if reaped, err := l.Reap(l.Context(), lapses, 10, settleEnding); err != nil || len(reaped) != 0 {
			t.Errorf("reaped %+v, %v", reaped, err)
		}
	})
	l.wantTask(ids[0], store.Dispatched)
}

// TestARenewalHeedsTheChangeItWaitedFor checks a renewal that waits for another renewal or for a cancel of the same grant. After the wait,
// the renewal must not make the lease shorter, and must not extend a cancelled lease.
func TestARenewalHeedsTheChangeItWaitedFor(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 2)
	_, ids := l.queueBatch(store.Batch{Pool: "p", Lease: time.Minute}, "renewed", "cancelled")
	for i, c := range []struct {
		device, change string
		moved          time.Duration // time by which the other change moves the end of the lease
	}{
		{"renewed", `UPDATE grants SET lease_until = lease_until + 1200000 * {ms} WHERE task = $1`, 20 * time.Minute},
		{"cancelled", `UPDATE grants SET cancel_why = 'cancelled' WHERE task = $1`, 0},
	} {
		g := l.mustGrant(ids[i], c.device, "p", i)
		want := g.LeaseUntil.Add(c.moved)
		waited := l.runDuringChange(c.change, []any{g.Task}, func() {
			renewal := store.Renewal{Task: g.Task, Token: g.Token, Device: c.device, Lease: 10 * time.Minute}
			outcomes, err := l.Renew(l.Context(), []store.Renewal{renewal})
			if err != nil || !outcomes[0].Grant.LeaseUntil.Equal(want) {
				t.Errorf("%s meanwhile: %+v, %v; want a lease until %s", c.device, outcomes, err, want)
			}
		})
		if !waited {
			t.Errorf("%s meanwhile: the renewal did not wait", c.device)
		}
	}
}

func TestAClaimCountsAgainstTheCapacityThatIsBeingSet(t *testing.T) {
	t.Parallel()
	openPostgres(t).claimDuringResize()
}

// TestTheCapHoldsWhateverIsolationIsSet checks that the capacity of a pool is never exceeded, even if the database has another default
// isolation level. With another level, a claim would read a snapshot from before it got the lock.
func TestTheCapHoldsWhateverIsolationIsSet(t *testing.T) {
	t.Parallel()
	dsn := sharedPostgres.NewLedger(t)
	admin, err := sql.Open("postgres", dsn)
	must.Succeed(t, err)
	defer admin.Close()
	if _, err := admin.ExecContext(t.Context(), `DO $$ BEGIN
		EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = ''repeatable read''', current_database());
	END $$`); err != nil {
		t.Fatal(err)
	}
	migrateOpened(t)(store.OpenPostgres(t.Context(), dsn+"&default_transaction_isolation=serializable", longTimeouts())).claimDuringResize()
}

func (l *ledger) claimDuringResize() {
	l.Helper()
	l.putPool("p", 2)
	_, ids := l.queueBatch(store.Batch{Pool: "p"}, "a", "b")
	l.mustGrant(ids[0], "a", "p", 1)
	// The statement lockAndLower writes what PutPool writes, in a transaction that stays open. The claim must wait for this transaction, and
	// must then use the new capacity.
	lockAndLower := `WITH locked AS (SELECT pg_advisory_xact_lock(20060, hashtext('p')))
		UPDATE pools SET capacity = 1 FROM locked WHERE name = 'p'`
	l.runDuringChange(lockAndLower, nil, func() {
		outcomes, err := l.Claim(l.Context(), []store.Claim{l.newClaim(ids[1], "b", "p", 0)}, true)
		if err != nil || outcomes[0].Status != claimConflict {
			l.Errorf("claim: %+v, %v; want a conflict", outcomes, err)
		}
	})
}

func TestAResizeWaitsForClaims(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 2)
	waited := l.runDuringChange(`SELECT pg_advisory_xact_lock_shared(20060, hashtext('p'))`, nil, func() {
		l.resizePool("p", 1)
	})
	if !waited {
		t.Error("a capacity was changed beside a claim that counts against the old one")
	}
}

const insertGrant = `
	INSERT INTO grants (task, batch, pool, slot, device, token, lease, attempt, granted_at, lease_until, max_until, lease_ms)
	SELECT id, batch, pool, $2, device, nextval('grant_token'), 'by hand', attempts + 1, {now}, {now} + 60000 * {ms}, {now}, 60000
	FROM tasks WHERE id = $1 FOR UPDATE`

// TestALateSuccessLeavesAGrantThatIsBeingMade records a late success of a task while a claim grants this task again. The late success must
// not end the task: the task no longer waits, but its row still has the state pending.
func TestALateSuccessLeavesAGrantThatIsBeingMade(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 1)
	_, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 3}, "a")
	old := l.mustGrant(ids[0], "a", "p", 0)
	l.reapAll()
	l.runDuringChange(insertGrant, []any{ids[0], 0}, func() {
		r := store.Result{Device: "a", Task: old.Task, Token: old.Token, Cause: store.BySuccess}
		if o := l.RecordResults(l.Context(), []store.Result{r}, settleEnding)[0]; o.Kind != store.ResultLate || o.State != store.Dispatched {
			t.Errorf("outcome %+v, want late and the task dispatched", o)
		}
	})
	l.wantTask(ids[0], store.Dispatched)
	if got := l.storedState(ids[0]); got != "pending" {
		t.Errorf("the task is %s beside its grant", got)
	}
}

// TestClaimsLockInOneOrder lets two calls claim the same slots in opposite orders, and stops both calls in the middle. Both calls must lock
// the slots in the same order, not in the order of their claims.
func TestClaimsLockInOneOrder(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 10)
	devices := deviceNames(7)
	_, ids := l.queueBatch(store.Batch{Pool: "p"}, devices...)
	call := func(claims ...store.Claim) func() {
		return func() {
			if _, err := l.Claim(l.Context(), claims, true); err != nil {
				t.Error(err)
			}
		}
	}
	l.mustGrant(ids[6], devices[6], "p", 5)
	l.runDuringChange(`DELETE FROM grants WHERE task = $1`, []any{ids[6]},
		call(l.newClaim(ids[0], devices[0], "p", 1), l.newClaim(ids[1], devices[1], "p", 5), l.newClaim(ids[2], devices[2], "p", 9)),
		call(l.newClaim(ids[3], devices[3], "p", 9), l.newClaim(ids[4], devices[4], "p", 5), l.newClaim(ids[5], devices[5], "p", 1)))
	grants, err := l.Grants(l.Context(), "p")
	l.must(err)
	if len(grants) != 3 {
		t.Errorf("grants %+v, want slots 1, 5 and 9", grants)
	}
	if n := l.countDeadlocks(); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// TestAClaimOutlivesADeadlock makes a deadlock that no order of locks can avoid: each of two calls holds the device that the other call
// needs. The database server rolls back one of the calls, and the ledger must repeat this call.
func TestAClaimOutlivesADeadlock(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("pa", 10)
	l.putPool("pb", 10)
	_, a := l.queueBatch(store.Batch{Pool: "pa"}, "x", "y", "z", "w", "blocker")
	_, b := l.queueBatch(store.Batch{Pool: "pb"}, "x", "y")
	outcomes := make([][]store.ClaimOutcome, 2)
	call := func(i int, claims ...store.Claim) func() {
		return func() {
			var err error
			if outcomes[i], err = l.Claim(l.Context(), claims, true); err != nil {
				t.Error(err)
			}
		}
	}
	l.mustGrant(a[4], "blocker", "pa", 5)
	l.runDuringChange(`DELETE FROM grants WHERE task = $1`, []any{a[4]},
		call(0, l.newClaim(a[0], "x", "pa", 0), l.newClaim(a[2], "z", "pa", 5), l.newClaim(b[1], "y", "pb", 0)),
		call(1, l.newClaim(a[1], "y", "pa", 1), l.newClaim(a[3], "w", "pa", 5), l.newClaim(b[0], "x", "pb", 1)))
	held := 0
	for _, o := range append(outcomes[0], outcomes[1]...) {
		if o.Status == store.ClaimGranted {
			held++
		}
	}
	if held != 3 { // The devices x and y and slot 5 are held once each, whichever call was first.
		t.Errorf("outcomes %+v, want three grants", outcomes)
	}
	if n := l.countDeadlocks(); n == 0 {
		t.Error("no deadlock: this test is about nothing")
	}
}

// countDeadlocks returns the number of deadlocks that happened in this database. It closes the ledger first, because the server then
// updates its statistics.
func (l *ledger) countDeadlocks() (n int) {
	l.Helper()
	var name string
	l.must(l.DB().QueryRowContext(l.Context(), `SELECT current_database()`).Scan(&name))
	l.must(l.Close())
	admin, err := sql.Open("postgres", sharedPostgres.Server(l).DSN("postgres"))
	l.must(err)
	defer admin.Close()
	l.awaitCondition(func() bool {
		var open int
		l.must(admin.QueryRowContext(l.Context(), `
			SELECT deadlocks, (SELECT count(*) FROM pg_stat_activity a WHERE a.datname = $1) FROM pg_stat_database WHERE datname = $1`,
			name).Scan(&n, &open))
		return open == 0
	})
	return n
}

// TestStoppingABatchOrPoolWaitsForClaims checks that nothing is granted after a cancel or a pause has returned. The call must wait for the
// claims before it, which hold the lock of the pool.
func TestStoppingABatchOrPoolWaitsForClaims(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(l *ledger, batch int64) error{
		"the batch is cancelled": func(l *ledger, batch int64) error { return returnedError(l.CancelBatch(l.Context(), "op", batch)) },
		"the batch is paused":    func(l *ledger, batch int64) error { return returnedError(l.PauseBatch(l.Context(), "op", batch, "")) },
		"the batch ends": func(l *ledger, batch int64) error {
			return returnedError(l.ChangeBatch(l.Context(), "op", batch, func(b *store.Batch) error { b.NotAfter = &time.Time{}; return nil }))
		},
		"the pool is paused": func(l *ledger, _ int64) error {
			return returnedError(l.ChangePool(l.Context(), "op", "p", "", func(p *store.PoolSpec) error { p.Paused = true; return nil }))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := openPostgres(t)
			l.putPool("p", 1)
			b, _ := l.queueBatch(store.Batch{Pool: "p"}, "a")
			waited := l.runDuringChange(`SELECT pg_advisory_xact_lock_shared(20060, hashtext('p'))`, nil, func() {
				if err := stop(l, b.ID); err != nil {
					t.Error(err)
				}
			})
			if !waited {
				t.Error("it was answered beside a claim that does not know of it")
			}
		})
	}
}

func returnedError[T any](_ T, err error) error { return err }

// TestARetrySeesTheEndOfItsBatchAndPool retries a task while its batch or its pool ends. The task must not become
// pending, because nothing would ever grant or end it.
func TestARetrySeesTheEndOfItsBatchAndPool(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]string{
		"cancelled": `UPDATE batches SET cancelled_at = {now}, cancelling = true`,
		"deleted":   `UPDATE pools SET deleted_at = {now}`,
	} {
		for how, retry := range map[string]func(l *ledger, task int64) error{
			"one": func(l *ledger, task int64) error { return returnedError(l.RetryTask(l.Context(), "op", task)) },
			"in bulk": func(l *ledger, _ int64) error {
				return returnedError(l.RetryTasks(l.Context(), "op", store.TaskFilter{Pool: "p"}, 10))
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				l := openPostgres(t)
				l.putPool("p", 1)
				_, ids := l.queueBatch(store.Batch{Pool: "p"}, "a")
				l.must(returnedError(l.CancelTask(l.Context(), "op", ids[0])))
				l.runDuringChange(end, nil, func() {
					if err := retry(l, ids[0]); err != nil && !errors.Is(err, store.ErrNotRetriable) {
						t.Error(err)
					}
				})
				l.wantTask(ids[0], store.Cancelled)
			})
		}
	}
}
