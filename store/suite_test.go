package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/await"
	backends "github.com/fleetslots/dispatcher/internal/test/backends"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/store"
)

// sharedPostgres is the Postgres server that all tests of this package use, except tests that stop their server.
var sharedPostgres servers.SharedPostgres //nolint:gochecknoglobals // one cluster per test binary: TestMain ends it

func TestMain(m *testing.M) {
	m.Run()
	sharedPostgres.Close()
}

// runOnEachDialect runs a test with an empty ledger in Postgres and in SQLite.
func runOnEachDialect(t *testing.T, test func(l *ledger)) {
	t.Helper()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		test(openPostgres(t))
	})
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(openSQLite(t))
	})
}

// ledger is a ledger (a store.Store) with helper functions for tests.
type ledger struct {
	testing.TB
	*store.Store
	leaseNumber *atomic.Int64
}

func openPostgres(tb testing.TB) *ledger {
	tb.Helper()
	return &ledger{tb, backends.OpenPostgres(tb, sharedPostgres.NewLedger(tb)), &atomic.Int64{}}
}

// longTimeouts returns options with timeouts that are long enough even if the machine stalls for a while.
func longTimeouts() store.Options {
	return store.Options{StatementTimeout: backends.LongTimeout, LockTimeout: backends.LongTimeout, IdleTimeout: backends.LongTimeout}
}

func openSQLite(tb testing.TB) *ledger {
	tb.Helper()
	return &ledger{tb, backends.OpenSQLite(tb, filepath.Join(tb.TempDir(), "ledger 100%?.db")), &atomic.Int64{}}
}

// migrateOpened returns a function that makes a test ledger from a store that the test has opened. It migrates the
// store if needed.
func migrateOpened(tb testing.TB) func(*store.Store, error) *ledger {
	tb.Helper()
	return func(s *store.Store, err error) *ledger {
		tb.Helper()
		must.Succeed(tb, err)
		tb.Cleanup(func() { _ = s.Close() })
		_, err = s.Migrate(tb.Context())
		must.Succeed(tb, err)
		return &ledger{tb, s, &atomic.Int64{}}
	}
}

// EnsureDevices registers each device in ids that is not registered yet, with the registrant fleet:test. It returns the devices in the
// order of ids.
func (l *ledger) EnsureDevices(ctx context.Context, ids ...string) ([]store.Device, error) {
	all := make([]store.Registration, len(ids))
	for i, id := range ids {
		all[i] = store.Registration{Device: id, Registrant: "fleet:test"}
	}
	registered, err := l.RegisterDevices(ctx, all...)
	found := make([]store.Device, len(registered))
	for i, r := range registered {
		found[i] = r.Device
	}
	return found, err
}

// enroll registers the device id if necessary, and gives it a token.
func (l *ledger) enroll(id string, hash []byte, set store.SetAccount) error {
	if _, err := l.EnsureDevices(l.Context(), id); err != nil {
		return err
	}
	return l.EnrollDevice(l.Context(), id, hash, set)
}

func (l *ledger) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// putPool creates or changes a pool with leases of an hour.
func (l *ledger) putPool(name string, capacity int) store.Pool {
	l.Helper()
	p, _, err := l.PutPool(l.Context(), "op", name, store.PoolSpec{Capacity: capacity, Lease: time.Hour})
	l.must(err)
	return p
}

// countWaitingUpTo returns how many devices wait in a pool. The count stops at maxCount.
func (l *ledger) countWaitingUpTo(maxCount int, pool string) int {
	l.Helper()
	o, err := l.Occupancy(l.Context(), pool, maxCount)
	l.must(err)
	return o.Waiting
}

// queueBatch creates a batch with one task for each device. It returns the batch and the ids of the tasks.
func (l *ledger) queueBatch(b store.Batch, devices ...string) (store.Batch, []int64) {
	l.Helper()
	created, err := l.CreateBatch(l.Context(), "op", b, tasksFor(devices))
	l.must(err)
	var ids []int64
	for after := int64(0); ; {
		page, err := l.Tasks(l.Context(), store.TaskFilter{Batch: created.ID, After: after, Limit: 1000})
		l.must(err)
		if len(page) == 0 {
			return created, ids
		}
		for _, task := range page {
			ids = append(ids, task.ID)
		}
		after = ids[len(ids)-1]
	}
}

// CreateBatch creates a batch with these tasks.
func (l *ledger) CreateBatch(ctx context.Context, actor string, b store.Batch, tasks iter.Seq2[store.NewTask, error]) (store.Batch, error) {
	return l.Store.CreateBatch(ctx, actor, b, store.NewBatchTasks{Tasks: tasks})
}

func tasksFor(devices []string) iter.Seq2[store.NewTask, error] {
	return func(yield func(store.NewTask, error) bool) {
		for _, d := range devices {
			if !yield(store.NewTask{Device: d}, nil) {
				return
			}
		}
	}
}

func deviceNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("dev-%05d", i)
	}
	return names
}

// newClaim returns a claim for a slot, with a new lease id.
func (l *ledger) newClaim(task int64, device, pool string, slot int) store.Claim {
	return store.Claim{Task: task, Device: device, Pool: pool, Slot: slot, LeaseID: fmt.Sprintf("lease-%d", l.leaseNumber.Add(1))}
}

// claimAll makes all claims in one call to the ledger and returns their statuses.
func (l *ledger) claimAll(claims ...store.Claim) []store.ClaimStatus {
	l.Helper()
	outcomes, err := l.Claim(l.Context(), claims, true)
	l.must(err)
	statuses := make([]store.ClaimStatus, len(outcomes))
	for i, o := range outcomes {
		statuses[i] = o.Status
		if (o.Grant.Token != 0) != (o.Status == store.ClaimGranted) {
			l.Fatalf("status %d with grant %+v", o.Status, o.Grant)
		}
	}
	return statuses
}

// mustGrant claims a slot for a task, fails the test if the claim is not granted, and returns the grant.
func (l *ledger) mustGrant(task int64, device, pool string, slot int) store.Grant {
	l.Helper()
	outcomes, err := l.Claim(l.Context(), []store.Claim{l.newClaim(task, device, pool, slot)}, true)
	l.must(err)
	if outcomes[0].Status != store.ClaimGranted {
		l.Fatalf("claim of task %d on slot %d: status %d, want granted", task, slot, outcomes[0].Status)
	}
	return outcomes[0].Grant
}

func (l *ledger) wantStatuses(got []store.ClaimStatus, want ...store.ClaimStatus) {
	l.Helper()
	if !slices.Equal(got, want) {
		l.Fatalf("claims: %v, want %v", got, want)
	}
}

// recordResult records one result that ends a grant, and returns its outcome.
func (l *ledger) recordResult(g store.Grant, cause store.EndCause, output string) store.ResultOutcome {
	l.Helper()
	r := store.Result{Device: g.Device, Task: g.Task, Token: g.Token, Cause: cause}
	if output != "" {
		r.Output = json.RawMessage(output)
	}
	outcome := l.RecordResults(l.Context(), []store.Result{r}, settleEnding)[0]
	l.must(outcome.Err)
	return outcome
}

func (l *ledger) wantTask(id int64, want store.TaskState) store.Task {
	l.Helper()
	task, grant, _, err := l.Task(l.Context(), id)
	l.must(err)
	if task.State != want {
		l.Fatalf("task %d is %s, want %s", id, task.State, want)
	}
	if (grant != nil) != (want == store.Dispatched) {
		l.Fatalf("task %d is %s with grant %v", id, task.State, grant)
	}
	return task
}

// reapAll ends all grants, as if all leases had ended, and returns these grants.
func (l *ledger) reapAll() []store.Reaped {
	l.Helper()
	reaped, err := l.Reap(l.Context(), l.lapsesAt(time.Now().AddDate(1, 0, 0)), 1000, settleEnding)
	l.must(err)
	return reaped
}

// lapsesAt returns LapseCutoffs with all lease lengths in use as keys. Each lease that ends before the time in the parameter end counts as
// ended.
func (l *ledger) lapsesAt(end time.Time) store.LapseCutoffs {
	l.Helper()
	clock, err := l.LeaseClock(l.Context())
	l.must(err)
	lapses := store.LapseCutoffs{}
	for _, lease := range clock.Lengths {
		lapses[lease] = end
	}
	return lapses
}

// settleEnding decides the state of a task whose grant ends, by simpler rules than in production: a failed or lost task is tried again
// until it has had MaxAttempts attempts.
func settleEnding(e store.EndedGrantFacts) store.NextTaskState {
	again := store.NextTaskState{State: store.Pending, Counted: true, Delay: e.RetryBackoff}
	last := e.Attempts+1 >= e.MaxAttempts
	switch {
	case e.Cause == store.BySuccess:
		return store.NextTaskState{State: store.Succeeded, Counted: true}
	case e.Cause == store.ByReturn && e.CancelWhy == "paused":
		return store.NextTaskState{State: store.Pending}
	case e.CancelWhy != "":
		return store.NextTaskState{State: store.Cancelled, Counted: true}
	case e.Cause == store.ByReturn:
		return store.NextTaskState{State: store.Pending, Returned: true, Delay: e.RetryAfter}
	case e.Cause == store.ByReject, e.Cause == store.ByFailure && last:
		return store.NextTaskState{State: store.Failed, Counted: true}
	case e.Cause == store.ByLapse && last:
		return store.NextTaskState{State: store.TimedOut, Counted: true}
	}
	return again
}

// resizePool changes the capacity of a pool, as putPool does. It may be called from any goroutine.
func (l *ledger) resizePool(name string, capacity int) {
	if _, _, err := l.PutPool(l.Context(), "op", name, store.PoolSpec{Capacity: capacity, Lease: time.Hour}); err != nil {
		l.Error(err)
	}
}

// awaitCondition calls done repeatedly until it returns true. After 2 minutes it fails the test.
func (l *ledger) awaitCondition(done func() bool) {
	l.Helper()
	await.True(l, "the condition", done)
}

// awaitLapsed waits until all leases of pool p that are shorter than 1 s have ended. It returns the time of the
// ledger.
func (l *ledger) awaitLapsed() (now time.Time) {
	l.Helper()
	l.awaitCondition(func() bool {
		grants, err := l.Grants(l.Context(), "p")
		l.must(err)
		now, err = l.Clock(l.Context())
		l.must(err)
		return !slices.ContainsFunc(grants, func(g store.Grant) bool {
			return g.LeaseLength < time.Second && g.LeaseUntil.After(now.Add(-10*time.Millisecond))
		})
	})
	return now
}

// ageGrants moves the times of all grants of a pool into the past by the duration by.
func (l *ledger) ageGrants(pool string, by time.Duration) {
	l.Helper()
	l.exec(`UPDATE grants SET lease_until = lease_until - $2 * {ms}, max_until = max_until - $2 * {ms} WHERE pool = $1`, pool, by.Milliseconds())
}

func (l *ledger) exec(query string, args ...any) {
	l.Helper()
	_, err := l.DB().ExecContext(l.Context(), l.Text(query), args...)
	l.must(err)
}

func (l *ledger) countRows(table string) (n int) {
	l.Helper()
	l.must(l.DB().QueryRowContext(l.Context(), "SELECT count(*) FROM "+table).Scan(&n))
	return n
}

// storedState returns the state of a task as it is stored in the table tasks.
func (l *ledger) storedState(task int64) (state string) {
	l.Helper()
	l.must(l.DB().QueryRowContext(l.Context(), "SELECT state FROM tasks WHERE id = $1", task).Scan(&state))
	return state
}

// countReturns returns the number of returns of a task that do not count as attempts.
func (l *ledger) countReturns(task int64) (returns int) {
	l.Helper()
	l.must(l.DB().QueryRowContext(l.Context(), "SELECT returned FROM tasks WHERE id = $1", task).Scan(&returns))
	return returns
}

func (l *ledger) grantToken(task int64) int64 {
	l.Helper()
	_, grant, _, err := l.Task(l.Context(), task)
	l.must(err)
	return grant.Token
}
