package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/simulator"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/operators"
)

// TestFaults checks the promises of the README under load. Two replicas serve 400 devices in 60 slots over HTTP and
// MQTT, and one fault after the other happens while the pool is nearly full. The capacity must never be exceeded, every
// task must end, every acknowledged result must be stored byte for byte, no slot may leak, each replica must grant
// again over both transports, and Redis must agree with the ledger at the end. CONTRIBUTING.md lists the faults.
//
// With -short, 48 devices in 12 slots meet each fault once.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, g := range faultGroups() {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			runJudged(t, func(t *testing.T, v *verdict) {
				t.Helper()
				x := newExperiment(t, v, g.redisArgs...)
				if g.prepare != nil {
					g.prepare(x)
				}
				x.deploy()
				x.run(g.faults(x)...)
			})
		})
	}
}

// faultGroup is a list of faults that run on one deployment.
type faultGroup struct {
	name      string
	redisArgs []string // arguments of the redis-server
	faults    func(*experiment) []fault

	prepare func(*experiment) // called before the deployment; nil means nothing to prepare
}

// faultGroups returns the faults of TestFaults and TestFaultsOnTwoWires. With -short, several groups run on one
// deployment.
func faultGroups() []faultGroup {
	var (
		replicas = faultGroup{name: "replicas", faults: (*experiment).replicaFaults}
		broker   = faultGroup{name: "broker", faults: (*experiment).brokerFaults}
		redis    = faultGroup{name: "redis", redisArgs: []string{"--appendonly", "yes"}, faults: (*experiment).redisFaults}
		postgres = faultGroup{name: "postgres", faults: (*experiment).postgresFaults}
		split    = faultGroup{name: "split-brain", faults: (*experiment).splitBrainFaults}
		rollback = faultGroup{name: "rollback", faults: (*experiment).rollbackFaults}
	)
	if testing.Short() {
		return []faultGroup{replicas.joined(rollback), broker.joined(postgres), redis.joined(split)}
	}
	return []faultGroup{
		replicas, broker, redis, postgres, split, rollback,
		{name: "cluster", faults: (*experiment).clusterFaults, prepare: prepareCluster},
		{name: "sentinel", faults: (*experiment).sentinelFaults, prepare: prepareSentinel},
	}
}

func (g faultGroup) joined(other faultGroup) faultGroup {
	return faultGroup{name: g.name + " and " + other.name, redisArgs: slices.Concat(g.redisArgs, other.redisArgs), faults: func(x *experiment) []fault {
		return slices.Concat(g.faults(x), other.faults(x))
	}}
}

func (x *experiment) replicaFaults() []fault {
	one, other := x.replicas[0], x.replicas[1]
	stopBetweenCommitAndReply := fault{"a replica is stopped between COMMIT and reply", func(ctx context.Context) error {
		struck := x.commits.arm(func() {
			x.ledgerLink.HoldReplies() // the COMMIT is forwarded, but its answer is held
			one.Pause()
		})
		select {
		case <-struck:
		case <-ctx.Done():
			return fmt.Errorf("no claim was committed: %w", context.Cause(ctx))
		}
		defer one.Resume()
		x.ledgerLink.ReleaseReplies()
		return pause(ctx, 2*x.margin())
	}}
	x.mustRedeliver = true
	return []fault{
		stopBetweenCommitAndReply,
		{"a replica is killed", func(context.Context) error { other.restart(x.t); return nil }},
		{"a replica is stopped for longer than a lease", pauseFault(one.Process, x.fleet.Lease+x.margin())},
		stopBetweenCommitAndReply,
	}
}

func (x *experiment) brokerFaults() []fault {
	return []fault{
		{"the broker is killed", func(ctx context.Context) error {
			x.broker.Kill()
			err := pause(ctx, 2*x.margin())
			x.broker.Start()
			return err
		}},
		{"the broker is stopped for longer than the margin", pauseFault(x.broker.Process, 2*x.margin())},
		{"the broker is restarted", func(context.Context) error {
			x.broker.Kill()
			x.broker.Start()
			return nil
		}},
	}
}

func (x *experiment) redisFaults() []fault {
	wipe := fault{"Redis is wiped", func(ctx context.Context) error {
		client := redis.NewClient(&redis.Options{Addr: x.redis.Addr})
		defer func() { _ = client.Close() }()
		return client.FlushAll(ctx).Err()
	}}
	return []fault{
		wipe,
		{"Redis is restarted with its data", func(context.Context) error {
			x.redis.Kill()
			x.redis.Start()
			return nil
		}},
		{"Redis is stopped", pauseFault(x.redis.Process, 2*x.margin())},
		{"Redis is restarted without data", func(context.Context) error {
			x.redis.Kill()
			x.redis.Restore(x.t, nil)
			x.redis.Start()
			return nil
		}},
		wipe,
	}
}

func (x *experiment) postgresFaults() []fault {
	immediate := fault{"Postgres is stopped immediately", func(context.Context) error {
		x.postgres.StopImmediately()
		x.postgres.Start()
		return nil
	}}
	return []fault{
		immediate,
		{"the connections to Postgres are killed", func(ctx context.Context) error {
			kills := 0
			return poll(ctx, 20*time.Millisecond, func() bool {
				_, err := x.db.ExecContext(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
					WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`)
				if err == nil { // the test's own connections are killed, too
					kills++
				}
				return kills == 100 // often, so that reports are in flight
			})
		}},
		immediate,
	}
}

// splitBrainFaults lets each replica use a Redis of its own for a while. The second time, the Redis of the second
// replica still has the data of the first time.
func (x *experiment) splitBrainFaults() []fault {
	second := servers.StartRedis(x.t)
	split := func(ctx context.Context) error {
		defer x.redisLink.PointTo(x.redis.Addr)
		err := x.causeConflicts(ctx, func() { x.redisLink.PointTo(second.Addr) })
		return errors.Join(err, pause(ctx, x.fleet.Lease/2))
	}
	return []fault{
		{"two masters, the second one empty", split},
		{"two masters, the second one stale", split},
	}
}

// rollbackFaults restarts Redis with an older snapshot. In this snapshot, slots that were granted later are still free.
func (x *experiment) rollbackFaults() []fault {
	return []fault{{"Redis is rolled back to an older snapshot", func(ctx context.Context) error {
		snapshot, err := x.snapshotWithFreeSlots(ctx)
		if err != nil {
			return err
		}
		if err := pause(ctx, x.fleet.Lease/2); err != nil {
			return err
		}
		if err := x.waitUntilRecovered(ctx); err != nil {
			return err
		}
		x.redis.Kill()
		x.redis.Restore(x.t, snapshot)
		x.redis.Start()
		// Redis may now give slots that are held. The ledger refuses these slots. If the reconciliation repairs Redis
		// before the first report, Redis gives no such slot.
		if err := x.waitForAgreement(ctx); err != nil {
			return err
		}
		return x.waitForAllGrants(ctx)
	}}}
}

// snapshotWithFreeSlots takes a snapshot of Redis while at least a third of the slots are free. For this it pauses
// the pool.
func (x *experiment) snapshotWithFreeSlots(ctx context.Context) ([]byte, error) {
	if err := x.setPaused(ctx, true); err != nil {
		return nil, err
	}
	err := poll(ctx, ledgerPause, func() bool {
		s, err := x.slots.Snapshot(ctx, pool)
		return err == nil && len(s.Leases) <= x.fleet.Capacity*2/3
	})
	if err != nil {
		return nil, err
	}
	snapshot := x.redis.Snapshot(x.t)
	return snapshot, x.setPaused(ctx, false)
}

// setPaused pauses or resumes the pool. It repeats the request until it succeeds, because a busy machine may break
// off the first one.
func (x *experiment) setPaused(ctx context.Context, paused bool) error {
	operator, err := simulator.NewOperator(x.fleet.URL, adminToken)
	if err != nil {
		return err
	}
	return poll(ctx, metricsPause, func() bool {
		_, err := operator.Pools.Put(ctx, pool, operators.PoolSettings{
			Capacity: x.fleet.Capacity, LeaseMS: new(x.fleet.Lease.Milliseconds()), Paused: &paused,
		})
		return err == nil
	})
}

// causeConflicts calls startConflict, which makes Redis and the ledger disagree about the free slots. It waits
// until the ledger has refused slots that Redis gave, and then until each replica has granted a task again.
func (x *experiment) causeConflicts(ctx context.Context, startConflict func()) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	before, err := x.conflictCount(ctx)
	if err != nil {
		return err
	}
	startConflict()
	var now float64
	if err := poll(ctx, metricsPause, func() bool {
		now, err = x.conflictCount(ctx)
		return err == nil && now > before
	}); err != nil {
		return fmt.Errorf("%w: no conflict between Redis and the ledger: %w", errTestedTooLittle, err)
	}
	x.t.Logf("%v conflicts at least", now-before)
	return x.waitForAllGrants(ctx)
}

// waitForAllGrants calls waitForGrants with the limit recoveryLimit.
func (x *experiment) waitForAllGrants(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	if silent, err := x.waitForGrants(ctx); err != nil {
		return fmt.Errorf("no grant by %q: %w", silent, err)
	}
	return nil
}

func pauseFault(p *servers.Process, d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		p.Pause()
		defer p.Resume()
		return pause(ctx, d)
	}
}

// restart kills a replica and starts it again. The output of the killed replica must not report a data race.
func (r *replica) restart(t *testing.T) {
	t.Helper()
	r.Signal(syscall.SIGKILL)
	if said := r.Output(); strings.Contains(said, "DATA RACE") {
		t.Errorf("the replica that was killed said:\n%s", said)
	}
	r.Start()
}
