package e2e

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/lib/pq"
	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/devices/simulator"
	"github.com/fleetslots/dispatcher/internal/testservers"
	"github.com/fleetslots/dispatcher/slots"
)

const (
	capacity  = 60
	busy      = 55 // slots that must be held when a fault strikes
	lease     = 8 * time.Second
	margin    = lease / 5
	reapEvery = time.Second
)

// TestFaults is the promise of the README under load: 400 devices, 2,000
// tasks, two replicas; Redis wiped, restarted without data, a replica stopped
// between the COMMIT of a grant and its reply. Never number 61 inside, every
// task ends, every acknowledged result is there byte for byte.
func TestFaults(t *testing.T) {
	t.Parallel()
	x := newExperiment(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	faults := make(chan error, 1)
	go func() { faults <- x.strike(ctx) }()
	summary, err := simulator.Run(ctx, simulator.Config{
		URL: balance(t, x.paused, x.other), OperatorToken: adminToken, FleetToken: fleetToken,
		Devices: 400, Tasks: 2000, Pool: "e2e", Capacity: capacity, Lease: lease,
		Via: simulator.ViaHTTP, Work: 125 * time.Millisecond, Long: 0.12,
		Period: 2 * time.Second, Resend: time.Second, Retry: 200 * time.Millisecond,
		Faults: simulator.Faults{Silent: 0.03, Duplicate: 0.03}, Seed: 1, Timeout: 4 * time.Minute,
	}, testWriter{t})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-faults; err != nil {
		t.Fatalf("the run does not count: %v", err)
	}
	var report bytes.Buffer
	_ = summary.Print(&report)
	t.Logf("\n%s", report.String())
	if err := summary.Err(); err != nil {
		t.Error(err)
	}
	if high := summary.External.HighWater; high < busy || high > capacity {
		t.Errorf("high-water mark %d: want %d..%d", high, busy, capacity)
	}
	if f := summary.Fleet; f.Silent == 0 || f.Renewals == 0 || f.Redeliveries == 0 {
		t.Errorf("%d silent, %d renewals, %d redeliveries: the run was too tame", f.Silent, f.Renewals, f.Redeliveries)
	}
	x.expectNoLeak()
	x.paused.stopCleanly(t)
	x.other.stopCleanly(t)
}

// experiment is the deployment under test.
type experiment struct {
	t        *testing.T
	db       *sql.DB
	redis    *testservers.RedisServer
	postgres *testservers.Proxy // between the paused replica and Postgres
	paused   *replica
	other    *replica
	commits  *commitWatch
}

func newExperiment(t *testing.T) *experiment {
	t.Helper()
	server := testservers.Postgres(t)
	dsn := server.NewDatabase(t)
	x := &experiment{t: t, redis: testservers.Redis(t), commits: &commitWatch{}}
	x.postgres = testservers.NewProxy(t, server.Addr())
	x.postgres.OnRequest(x.commits.see)
	settings := []string{
		"DISPATCHER_LEASE_MARGIN=" + margin.String(), "DISPATCHER_REAP_INTERVAL=" + reapEvery.String(),
		"DISPATCHER_RECONCILE_INTERVAL=2s", "DISPATCHER_REPORT_PERIOD=2s",
	}
	x.paused = startReplica(t, strings.ReplaceAll(dsn, server.Addr(), x.postgres.Addr), x.redis.URL(), settings...)
	x.other = startReplica(t, dsn, x.redis.URL(), settings...)
	var err error
	if x.db, err = sql.Open("postgres", dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.db.Close() })
	return x
}

// strike brings the faults on, each while the pool is nearly full.
func (x *experiment) strike(ctx context.Context) error {
	client := redis.NewUniversalClient(slots.Options(x.redis.Addr))
	defer client.Close()
	for _, fault := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"FLUSHALL", func(ctx context.Context) error { return client.FlushAll(ctx).Err() }},
		{"replica stopped between COMMIT and reply", x.stopBetweenCommitAndReply},
		{"Redis restarted without data", func(context.Context) error { x.redis.Kill(); x.redis.Start(); return nil }},
		{"replica stopped between COMMIT and reply", x.stopBetweenCommitAndReply},
		{"FLUSHALL", func(ctx context.Context) error { return client.FlushAll(ctx).Err() }},
	} {
		held, err := x.untilBusy(ctx)
		if err != nil {
			return err
		}
		x.t.Logf("fault: %s, with %d slots held", fault.name, held)
		if err := fault.do(ctx); err != nil {
			return err
		}
	}
	return nil
}

// untilBusy waits until enough slots are held.
func (x *experiment) untilBusy(ctx context.Context) (held int, err error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if held, err = x.held(ctx); err != nil || held >= busy {
			return held, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return held, ctx.Err()
		}
	}
}

func (x *experiment) held(ctx context.Context) (held int, err error) {
	err = x.db.QueryRowContext(ctx, `SELECT count(*) FROM grants WHERE lease_until > now()`).Scan(&held)
	return held, err
}

// stopBetweenCommitAndReply waits for the COMMIT of a claim of the replica,
// stops the process before it can read the answer, for twice the margin.
func (x *experiment) stopBetweenCommitAndReply(ctx context.Context) error {
	struck := x.commits.arm(func() {
		x.postgres.HoldReplies() // the COMMIT is forwarded, its answer is not
		x.paused.Signal(syscall.SIGSTOP)
	})
	select {
	case <-struck:
	case <-ctx.Done():
		return fmt.Errorf("no claim was committed: %w", ctx.Err())
	}
	x.postgres.ReleaseReplies()
	resume := time.NewTimer(2 * margin)
	defer resume.Stop()
	<-resume.C
	x.paused.Signal(syscall.SIGCONT)
	return nil
}

// expectNoLeak waits until no slot is held, which must be so within a lease,
// a reap interval and a second.
func (x *experiment) expectNoLeak() {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), lease+reapEvery+time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var held int
		if err := x.db.QueryRowContext(x.t.Context(), `SELECT count(*) FROM grants`).Scan(&held); err != nil {
			x.t.Fatal(err)
		}
		if held == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			x.t.Errorf("%d slots leaked", held)
			return
		}
	}
}

// commitWatch recognises the COMMIT that follows the claim of a grant in what
// a replica sends to Postgres.
type commitWatch struct {
	armed   atomic.Pointer[func()]
	claimed atomic.Bool
}

// arm calls strike in the middle of the next such COMMIT, once; the returned
// channel is closed after it.
func (w *commitWatch) arm(strike func()) <-chan struct{} {
	struck := make(chan struct{})
	do := func() {
		strike()
		close(struck)
	}
	w.claimed.Store(false)
	w.armed.Store(&do)
	return struck
}

func (w *commitWatch) see(chunk []byte) {
	if w.armed.Load() == nil {
		return
	}
	if bytes.Contains(chunk, []byte(`"slot":`)) { // the argument of a claim's statement
		w.claimed.Store(true)
	}
	if !w.claimed.Load() || !bytes.Contains(chunk, []byte("COMMIT")) {
		return
	}
	if do := w.armed.Swap(nil); do != nil {
		(*do)()
	}
}

// testWriter shows the progress lines with -v.
type testWriter struct{ t *testing.T }

// Write logs one line.
func (w testWriter) Write(line []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(line), "\n"))
	return len(line), nil
}
