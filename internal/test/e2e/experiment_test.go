package e2e

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	_ "github.com/lib/pq"
	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/redisconn"
	"github.com/fleetslots/dispatcher/internal/simulator"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/slots"
)

const (
	pool = "e2e"

	recoveryLimit = 3 * time.Minute // generous, because the actual time is logged
	runLimit      = 12 * time.Minute
)

// experiment is a deployment under load: replicas on real servers, a fleet that reports over both transports, an
// external system that counts who is inside, and faults.
type experiment struct {
	*verdict
	t        *testing.T
	watch    *stallWatch
	postgres *servers.PostgresServer
	redis    *servers.RedisServer
	cluster  *servers.RedisNodes    // used instead of redis; nil means not used
	sentinel *servers.RedisSentinel // used instead of redis; nil means not used
	broker   *servers.MosquittoServer
	dsn      string
	db       *sql.DB
	slots    *slots.Semaphore // reads the state in Redis
	replicas []*replica

	// ledgerLink is the proxy between the first replica and Postgres. redisLink is the proxy between the second
	// replica and Redis.
	ledgerLink, redisLink *servers.Proxy
	commits               *commitWatch // watches ledgerLink

	// The fields below may be changed before deploy is called.
	program       *servers.Program // build of the replicas
	fleet         simulator.Config
	reapEvery     time.Duration
	settings      []string      // environment variables of the replicas
	redisURL      string        // URL for all replicas; "" means the Redis in the field redis, which the second replica reaches through redisLink
	mustRedeliver bool          // at least one grant must be redelivered
	extraReplicas int           // number of replicas in addition to the two
	timeLimit     time.Duration // time limit of the whole run
}

// margin returns the part at the end of each lease that the replicas do not give to devices.
func (x *experiment) margin() time.Duration { return x.fleet.Lease / 5 }

// wantHeld returns how many slots must be held at the moment of a fault.
func (x *experiment) wantHeld() int { return x.fleet.Capacity * 11 / 12 }

// wantInside returns the number of devices that must have been inside the external system at once. It is less than wantHeld, because some
// grants are still on their way to the device.
func (x *experiment) wantInside() int { return x.fleet.Capacity * 3 / 4 }

// newExperiment starts the servers.
func newExperiment(t *testing.T, v *verdict, redisArgs ...string) *experiment {
	t.Helper()
	x := &experiment{
		verdict: v, t: t, watch: watchMachine(t.Context()), postgres: servers.StartPostgres(t), redis: servers.StartRedis(t, redisArgs...),
		program: &program, reapEvery: time.Second, timeLimit: runLimit,
		settings: []string{ // the margin is at most a fifth of a lease, whatever is configured
			"DISPATCHER_REAP_INTERVAL=1s", "DISPATCHER_RECONCILE_INTERVAL=2s", "DISPATCHER_REPORT_PERIOD=3s",
		},
	}
	x.fleet = simulator.Config{
		OperatorToken: adminToken, FleetToken: fleetToken,
		Devices: 400, Tasks: 250, Pool: pool, Capacity: 60, Lease: 8 * time.Second,
		Via: simulator.ViaMixed, Work: 700 * time.Millisecond, LongShare: 0.15,
		Period: 3 * time.Second, ResendAfter: 2 * time.Second, FirstRetry: 200 * time.Millisecond,
		Faults: simulator.Faults{Silent: 0.03, Duplicate: 0.03}, Seed: 1, Timeout: runLimit,
	}
	if testing.Short() {
		x.shrink()
	}
	x.dsn = x.postgres.NewDatabase(t)
	var err error
	if x.db, err = sql.Open("postgres", x.dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.db.Close() })
	client := redis.NewUniversalClient(redisconn.Options(x.redis.Addr))
	t.Cleanup(func() { _ = client.Close() })
	x.slots = slots.New(client)
	return x
}

// shrink reduces the experiment to the size of the daily run: it checks the same promises with fewer devices in
// fewer slots, and makes each fault once.
func (x *experiment) shrink() {
	x.fleet.Devices, x.fleet.Tasks, x.fleet.Capacity, x.fleet.Lease = 48, 60, 12, 5*time.Second
	x.fleet.Work, x.fleet.Period = time.Second, 2*time.Second
	x.fleet.Silent = 0.12 // so that some of the few grants fall silent
}

// deploy starts the replicas and assigns the devices of the fleet to them.
func (x *experiment) deploy() {
	x.t.Helper()
	x.ledgerLink, x.redisLink = servers.NewProxy(x.t, x.postgres.Addr()), servers.NewProxy(x.t, x.redis.Addr)
	x.commits = &commitWatch{}
	x.ledgerLink.OnRequest(x.commits.inspect)
	x.broker = startBroker(x.t, x.fleet.Devices)
	settings := append([]string{
		"DISPATCHER_MQTT_URL=" + x.broker.URL, "DISPATCHER_MQTT_USER=dispatcher", "DISPATCHER_MQTT_PASSWORD=" + fleetToken,
	}, x.settings...)
	first, second := x.redis.URL(), "redis://"+x.redisLink.Addr
	if x.redisURL != "" {
		first, second = x.redisURL, x.redisURL
	}
	binary := x.program.Path(x.t)
	x.replicas = []*replica{
		startReplicaBinary(x.t, binary, strings.ReplaceAll(x.dsn, x.postgres.Addr(), x.ledgerLink.Addr), first, settings...),
		startReplicaBinary(x.t, binary, x.dsn, second, settings...),
	}
	for range x.extraReplicas {
		x.replicas = append(x.replicas, startReplicaBinary(x.t, binary, x.dsn, first, settings...))
	}
	x.fleet.Margin = x.margin()
	x.fleet.URL, x.fleet.MQTTURL = startBalancer(x.t, x.replicas...), x.broker.URL
}

// fault is a fault that the test injects into the deployment. inject returns when the fault is over.
type fault struct {
	name   string // with -short, only the first fault of a name is injected
	inject func(context.Context) error
}

// run starts the load and then the faults. Each fault starts when the deployment has recovered from the previous
// one and the pool is nearly full. At the end, run lets the fleet finish its tasks and evaluates the result.
func (x *experiment) run(faults ...fault) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), x.timeLimit)
	defer cancel()
	enough := make(chan struct{})
	x.fleet.FillUntil = enough
	simulation := x.simulate(ctx)
	crowded := x.watchOverGrants(simulation.ctx)
	err := x.injectFaults(simulation.ctx, faults)
	close(enough)
	if err != nil {
		cancel()
	}
	<-simulation.ctx.Done()
	if found := <-crowded; found != "" {
		x.addViolation("the ledger said: %s", found)
	}
	conflicts, err2 := x.conflictCount(x.t.Context())
	x.t.Logf("%v conflicts in all (%v)", conflicts, err2)
	if errors.Is(err, errTestedTooLittle) {
		x.addDoubt("%w", err)
	} else if err != nil {
		x.addViolation("%w", err)
	}
	if simulation.err != nil {
		x.addViolation("%w", simulation.err)
	}
	x.checkPromises(simulation.summary)
}

// simulation is a running fleet. When the fleet has ended, ctx ends, and then the other fields are set.
type simulation struct {
	ctx     context.Context //nolint:containedctx // it is the simulation's life
	summary simulator.Summary
	err     error
}

func (x *experiment) simulate(ctx context.Context) *simulation {
	alive, end := context.WithCancelCause(context.WithoutCancel(ctx))
	s := &simulation{ctx: alive}
	go func() {
		s.summary, s.err = simulator.Run(ctx, x.fleet, testWriter{x.t})
		end(errors.New("the simulation ended"))
	}()
	return s
}

// errTestedTooLittle means that the run did not test enough, so that its result does not count.
var errTestedTooLittle = errors.New("the run was too tame")

func (x *experiment) injectFaults(ctx context.Context, faults []fault) error {
	if err := x.waitUntilRecovered(ctx); err != nil {
		return fmt.Errorf("%w: %w", errTestedTooLittle, err)
	}
	struck := map[string]bool{}
	for _, f := range faults {
		if testing.Short() && struck[f.name] {
			continue
		}
		struck[f.name] = true
		held, err := x.heldCount(ctx)
		if err != nil {
			return err
		}
		x.t.Logf("fault: %s, with %d slots held", f.name, held)
		if err := f.inject(ctx); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		over := time.Now()
		recovery, err := x.measureRecovery(ctx)
		if err == nil {
			err = x.waitUntilRecovered(ctx)
		}
		if err != nil {
			return fmt.Errorf("not recovered from: %s: %w", f.name, err)
		}
		x.t.Logf("recovered: %s, each replica and transport granted and the slots held after %.1f s", recovery, time.Since(over).Seconds())
	}
	return x.waitForAgreement(ctx)
}

func (x *experiment) checkPromises(s simulator.Summary) {
	x.t.Helper()
	var report bytes.Buffer
	_ = s.Print(&report)
	x.t.Logf("\n%s", report.String())
	if err := s.Err(); err != nil {
		x.addViolation("%w", err)
	}
	if high := s.External.HighWater; high < x.wantInside() {
		x.addDoubt("%w: high-water mark %d, want %d at least", errTestedTooLittle, high, x.wantInside())
	}
	if s.Fleet.Silent == 0 || x.fleet.LongShare > 0 && s.Fleet.Renewals == 0 {
		x.addDoubt("%w: %d silent, %d renewals", errTestedTooLittle, s.Fleet.Silent, s.Fleet.Renewals)
	}
	if x.mustRedeliver && s.Fleet.Redeliveries == 0 {
		x.addDoubt("%w: no grant was delivered again", errTestedTooLittle)
	}
	x.expectNoLeak()
	x.auditLedger(s.Interrupted)
	for _, r := range x.replicas {
		r.stopCleanly(x.t)
		if x.t.Failed() || len(x.violations) > 0 {
			x.t.Logf("the replica at %s said:\n%s", r.addr, r.Output())
		}
	}
}

// expectNoLeak checks that no slot stays held after the fleet has ended. It waits until the ledger has no grant.
// This must happen within a lease, a reap interval and a second, plus the time for which the machine stalled during
// the wait. Then it waits until no slot is held in Redis.
func (x *experiment) expectNoLeak() {
	x.t.Helper()
	var left int
	begin := time.Now()
	_, before := x.watch.stalls()
	_ = poll(x.t.Context(), ledgerPause, func() (done bool) {
		waited := time.Since(begin)
		_, stood := x.watch.stalls()
		done = x.db.QueryRowContext(x.t.Context(), `SELECT count(*) FROM grants`).Scan(&left) == nil && left == 0
		return done || waited > x.fleet.Lease+x.reapEvery+time.Second+stood-before
	})
	if left > 0 {
		x.addViolation("%d slots leaked", left)
	}
	ctx, cancel := context.WithTimeout(x.t.Context(), recoveryLimit)
	defer cancel()
	err := poll(ctx, ledgerPause, func() bool {
		s, err := x.slots.Snapshot(ctx, pool)
		left = len(s.Leases)
		return err == nil && left == 0
	})
	if err != nil {
		x.addViolation("Redis still holds %d slots", left)
	}
}

// These are the pauses between two reads: of the database, and of metrics, which need more work.
const (
	ledgerPause  = 50 * time.Millisecond
	metricsPause = 500 * time.Millisecond
)

// poll calls isDone until it returns true, or ctx ends.
func poll(ctx context.Context, every time.Duration, isDone func() bool) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for !isDone() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// pause waits for d. It returns an error if ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// startBroker starts a mosquitto that knows each device of a fleet, and the device neighbourName. A device may use only its own topics.
func startBroker(t *testing.T, devices int) *servers.MosquittoServer {
	t.Helper()
	passwords := map[string]string{"dispatcher": fleetToken, neighbourName: fleetToken}
	for i := range devices {
		passwords[fmt.Sprintf("%s%05d", simulator.DefaultPrefix, i+1)] = fleetToken
	}
	return servers.StartMosquittoWithUsers(t, passwords,
		"user dispatcher", "topic read fleet/v1/+/report", "topic write fleet/v1/+/reply",
		"pattern write fleet/v1/%u/report", "pattern read fleet/v1/%u/reply")
}

// testWriter logs the progress lines, which go test prints with -v.
type testWriter struct{ t *testing.T }

// Write logs one line.
func (w testWriter) Write(line []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(line), "\n"))
	return len(line), nil
}
