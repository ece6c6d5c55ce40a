package dispatcher_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/marks"
	"github.com/fleetslots/dispatcher/dispatcher/policies"
	"github.com/fleetslots/dispatcher/dispatcher/upkeep"
	backends "github.com/fleetslots/dispatcher/internal/test/backends"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// The servers that all tests of this package share: one of each kind per test binary. TestMain ends them.
var (
	sharedPostgres servers.SharedPostgres //nolint:gochecknoglobals // see above
	sharedRedis    servers.SharedRedis    //nolint:gochecknoglobals // see above
)

func TestMain(m *testing.M) {
	code := m.Run()
	sharedPostgres.Close()
	sharedRedis.Close()
	if code != 0 {
		return // leaked goroutines of failed tests would only hide the failure
	}
	if err := goleak.Find(goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")); err != nil {
		panic(err)
	}
}

// testBench is a dispatcher on real stores, with helpers for tests.
type testBench struct {
	*dispatcher.Dispatcher
	t             testing.TB
	ctx           context.Context //nolint:containedctx // the test's own, ended with it
	store         *store.Store
	semaphore     *slots.Semaphore
	limits        *policies.Limits
	redis         redis.UniversalClient
	redisDatabase int
	mini          *miniredis.Miniredis // nil with real servers
	sqlDriver     string               // driver and address with which runSQL opens the ledger
	dsn           string
}

// runOnBackends runs a test once on the embedded stores and once on real servers. It is for tests of promises, and
// for tests of behaviour in which SQLite and Postgres differ.
func runOnBackends(t *testing.T, test func(b *testBench), changes ...func(*dispatcher.Config)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(newEmbeddedBench(t, changes...))
	})
	t.Run("servers", func(t *testing.T) {
		t.Parallel()
		test(newServerBench(t, changes...))
	})
}

// runOnServers runs a test on real servers. In the long suite it also runs the test on the embedded stores.
func runOnServers(t *testing.T, test func(b *testBench), changes ...func(*dispatcher.Config)) {
	t.Helper()
	if !testing.Short() {
		runOnBackends(t, test, changes...)
		return
	}
	t.Run("servers", func(t *testing.T) {
		t.Parallel()
		test(newServerBench(t, changes...))
	})
}

// newEmbeddedBench returns a bench on the embedded stores, which the command `dev` uses.
func newEmbeddedBench(tb testing.TB, changes ...func(*dispatcher.Config)) *testBench {
	tb.Helper()
	mini := miniredis.RunT(tb)
	b := newSQLiteBench(tb, servers.RedisAt{Addr: mini.Addr()}, changes...)
	b.mini = mini
	return b
}

// newLightBench returns a bench on SQLite and the shared Redis server, which runs scripts ten times as fast as the
// embedded Redis (miniredis). It is for properties that do not depend on the kind of store.
func newLightBench(tb testing.TB, changes ...func(*dispatcher.Config)) *testBench {
	tb.Helper()
	return newSQLiteBench(tb, sharedRedis.NewDatabase(tb), changes...)
}

func newSQLiteBench(tb testing.TB, redisAddr servers.RedisAt, changes ...func(*dispatcher.Config)) *testBench {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "ledger.db")
	b := newBench(tb, backends.OpenSQLite(tb, path), redisAddr, changes...)
	b.sqlDriver, b.dsn = "sqlite", "file:"+path+"?_pragma=busy_timeout(60000)"
	return b
}

func newServerBench(tb testing.TB, changes ...func(*dispatcher.Config)) *testBench {
	tb.Helper()
	dsn := sharedPostgres.NewLedger(tb)
	b := newBench(tb, backends.OpenPostgres(tb, dsn), sharedRedis.NewDatabase(tb), changes...)
	b.sqlDriver, b.dsn = "postgres", dsn
	return b
}

// runSQL runs a statement on the ledger without the store, so that no news about the change are written.
func (b *testBench) runSQL(statement string) {
	b.t.Helper()
	db, err := sql.Open(b.sqlDriver, b.dsn)
	b.must(err)
	defer func() { _ = db.Close() }()
	_, err = db.ExecContext(b.ctx, statement)
	b.must(err)
}

// ageGrants makes the grants of pool "a" look older. With it, a test decides when leases end, and no lease ends early
// on a machine that stalls.
func (b *testBench) ageGrants(by time.Duration) {
	b.t.Helper()
	ago := strconv.FormatInt(by.Milliseconds(), 10)
	if b.sqlDriver == "postgres" {
		ago = "interval '" + ago + " ms'"
	}
	b.runSQL("UPDATE grants SET granted_at = granted_at - " + ago + ", lease_until = lease_until - " + ago + ", max_until = max_until - " + ago + " WHERE pool = 'a'")
}

func newBench(tb testing.TB, ledger *store.Store, redisAddr servers.RedisAt, changes ...func(*dispatcher.Config)) *testBench {
	tb.Helper()
	client := backends.OpenRedis(tb, redisAddr).Client
	b := &testBench{t: tb, ctx: tb.Context(), store: ledger, semaphore: slots.New(client), limits: policies.NewLimits(limits.New(client)), redis: client, redisDatabase: redisAddr.DB}
	config := dispatcher.Config{
		Store: ledger, Semaphore: b.semaphore, Limits: b.limits, LeaseMargin: 10 * time.Second,
		Marks: marks.NewHashes(client), FleetTokens: []string{"fleet-token-of-the-tests"}, Jitter: func() float64 { return 0.5 },
	}
	for _, change := range changes {
		change(&config)
	}
	b.Dispatcher = dispatcher.New(config)
	if b.Marks != nil {
		ledger.OnNews(b.Marks.FollowCommit)
		b.followMarks()
	}
	if _, err := b.Upkeep.Reap(b.ctx); err != nil { // this reads the clock of the ledger, as a starting replica does
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := b.Waiters.Stop(context.Background()); err != nil {
			tb.Error(err)
		}
	})
	return b
}

// followMarks runs the pass that brings the marks up to date (a mark says that a device has work). After it, a
// missing mark is trusted for two seconds.
func (b *testBench) followMarks() {
	b.t.Helper()
	b.must(b.Marks.FollowNews(b.ctx))
}

func (b *testBench) createPool(name string, capacity int, lease time.Duration) {
	b.t.Helper()
	_, _, err := b.store.PutPool(b.ctx, "test", name, store.PoolSpec{Capacity: capacity, Lease: lease})
	b.must(err)
}

// createBatch queues one task for each device and returns the batch's id.
func (b *testBench) createBatch(pool string, change func(*store.Batch), devices ...string) int64 {
	b.t.Helper()
	return b.queueTasks(pool, change, tasksFor(devices))
}

// queueTimedTask queues one task that has its own times (not_before, not_after) and returns the id of the task.
func (b *testBench) queueTimedTask(task store.NewTask) int64 {
	b.t.Helper()
	b.queueTasks("a", nil, oneTask(task))
	list := b.deviceTaskIDs(task.Device)
	return list[len(list)-1]
}

func (b *testBench) queueTasks(pool string, change func(*store.Batch), tasks iter.Seq2[store.NewTask, error]) int64 {
	b.t.Helper()
	in := store.Batch{
		Pool: pool, Kind: "speedtest", Payload: json.RawMessage(`{"server":"st1"}`), Weight: 1,
		MaxAttempts: 3, RetryOn: []string{"failed", "timed_out"}, OnLost: "retry",
	}
	if change != nil {
		change(&in)
	}
	out, err := b.store.CreateBatch(b.ctx, "test", in, store.NewBatchTasks{Tasks: tasks})
	b.must(err)
	return out.ID
}

func oneTask(task store.NewTask) iter.Seq2[store.NewTask, error] {
	return func(yield func(store.NewTask, error) bool) { yield(task, nil) }
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

// sendReport sends a report, which is given as JSON. If the dispatcher could not decide, sendReport sends the
// report again, as a device does: a machine that stalls for some seconds is no failure.
func (b *testBench) sendReport(device, body string) devices.Reply {
	b.t.Helper()
	reply, err := b.tryReport(device, body)
	for range maxRetries {
		if !isUndecided(reply, err) {
			break
		}
		reply, err = b.tryReport(device, body)
	}
	if err != nil {
		b.t.Fatalf("report of %s: %v", device, err)
	}
	return reply
}

// maxRetries is the maximum number of retries of a report in a test whose stores work.
const maxRetries = 5

// isUndecided reports whether the reply means that the report had no effect, so that it can be sent again.
func isUndecided(reply devices.Reply, err error) bool {
	return errors.Is(err, devices.ErrUnavailable) ||
		reply.Reason == devices.ReasonUnavailable && len(reply.Acks)+len(reply.Renewed)+len(reply.Cancel) == 0
}

func (b *testBench) tryReport(device, body string) (devices.Reply, error) {
	b.t.Helper()
	report, err := devices.DecodeReport([]byte(body))
	b.must(err)
	return b.HandleReport(b.ctx, devices.Caller{Device: devices.ID(device), Via: devices.ViaFleetToken}, report)
}

// expectGrant sends a report of an idle device, expects that a task is granted, and returns the task.
func (b *testBench) expectGrant(device string) devices.Task {
	b.t.Helper()
	reply := b.sendReport(device, `{"id":"g"}`)
	if reply.Reason != devices.ReasonGranted || reply.Task == nil {
		b.t.Fatalf("%s: reason %s, want granted", device, reply.Reason)
	}
	return *reply.Task
}

func (b *testBench) expectReason(device, body string, want devices.Reason) devices.Reply {
	b.t.Helper()
	reply, err := b.tryReport(device, body)
	if want != devices.ReasonUnavailable && isUndecided(reply, err) {
		reply, err = b.sendReport(device, body), nil
	}
	if err != nil {
		b.t.Fatalf("report of %s: %v", device, err)
	}
	if reply.Reason != want {
		b.t.Errorf("%s reported %s: reason %s, want %s", device, body, reply.Reason, want)
	}
	if (reply.Task != nil) != (reply.Reason == devices.ReasonGranted) {
		b.t.Errorf("%s: reason %s with task %v", device, reply.Reason, reply.Task)
	}
	return reply
}

// resultReport returns the text of a report with one result of a granted task.
func resultReport(t devices.Task, status, moreFields string) string {
	return fmt.Sprintf(`{"id":"r","results":[{"task":%d,"token":%d,"status":%q%s}]}`, t.ID, t.Token, status, moreFields)
}

// runningReport returns the text of a report that lists a granted task as running.
func runningReport(t devices.Task) string {
	return fmt.Sprintf(`{"id":"u","running":[{"task":%d,"token":%d}]}`, t.ID, t.Token)
}

// sendResult sends the result of a granted task and checks the outcome of the result.
func (b *testBench) sendResult(device string, t devices.Task, status, moreFields string, want devices.Outcome) devices.Reply {
	b.t.Helper()
	reply := b.sendReport(device, resultReport(t, status, moreFields))
	if len(reply.Acks) != 1 || reply.Acks[0].Outcome != want || reply.Acks[0].Task != t.ID || reply.Acks[0].Token != t.Token {
		b.t.Fatalf("%s sent %s: acks %+v, want one %s", device, status, reply.Acks, want)
	}
	return reply
}

func (b *testBench) readTask(id int64) store.Task {
	b.t.Helper()
	task, _, _, err := b.store.Task(b.ctx, id)
	b.must(err)
	return task
}

func (b *testBench) expectState(id int64, want store.TaskState) {
	b.t.Helper()
	if got := b.readTask(id).State; got != want {
		b.t.Errorf("task %d is %s, want %s", id, got, want)
	}
}

// heldSlots returns the numbers of held slots of pool "a" in the semaphore and in the ledger.
func (b *testBench) heldSlots() (inRedis, inLedger int) {
	b.t.Helper()
	snapshot, err := b.semaphore.Snapshot(b.ctx, "a")
	b.must(err)
	grants, err := b.store.Grants(b.ctx, "a")
	b.must(err)
	return len(snapshot.Leases), len(grants)
}

func (b *testBench) expectHeld(want int) {
	b.t.Helper()
	if inRedis, inLedger := b.heldSlots(); inRedis != want || inLedger != want {
		b.t.Errorf("%d held in Redis, %d in the ledger, want %d", inRedis, inLedger, want)
	}
}

// endAllLeases makes every lease of pool "a" end by the ledger's clock.
func (b *testBench) endAllLeases() {
	b.t.Helper()
	b.ageGrants(100 * time.Hour)
}

func (b *testBench) reap() upkeep.ReapResult {
	b.t.Helper()
	r, err := b.Upkeep.Reap(b.ctx)
	b.must(err)
	return r
}

func (b *testBench) reconcile() upkeep.ReconcileResult {
	b.t.Helper()
	r, err := b.Upkeep.Reconcile(b.ctx)
	b.must(err)
	return r
}
