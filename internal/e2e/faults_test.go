package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/devices/simulator"
	"github.com/fleetslots/dispatcher/internal/testservers"
)

// TestFaults is the promise of the README under load: two replicas, 400
// devices over HTTP and MQTT, and one kind of fault after the other while the
// pool is nearly full. Never number 61 inside, every task ends, every
// acknowledged result is there byte for byte, no slot leaks, each replica
// grants again over both transports, and Redis ends up saying what the ledger
// says.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, group := range []struct {
		name string
		test func(*testing.T, *verdict)
	}{
		{"replicas", replicaFaults},
		{"broker", brokerFaults},
		{"redis", redisFaults},
		{"postgres", postgresFaults},
		{"split-brain", splitBrain},
		{"rollback", rollback},
	} {
		t.Run(group.name, func(t *testing.T) {
			t.Parallel()
			judged(t, group.test)
		})
	}
}

func replicaFaults(t *testing.T, v *verdict) {
	t.Helper()
	x := newExperiment(t, v)
	commits := &commitWatch{}
	proxy := testservers.NewProxy(t, x.postgres.Addr())
	proxy.OnRequest(commits.see)
	x.deploy(links{dsn: strings.ReplaceAll(x.dsn, x.postgres.Addr(), proxy.Addr)}, links{})
	one, other := x.replicas[0], x.replicas[1]
	stopBetweenCommitAndReply := func(ctx context.Context) error {
		struck := commits.arm(func() {
			proxy.HoldReplies() // the COMMIT is forwarded, its answer is not
			one.Pause()
		})
		select {
		case <-struck:
		case <-ctx.Done():
			return fmt.Errorf("no claim was committed: %w", context.Cause(ctx))
		}
		defer one.Resume()
		proxy.ReleaseReplies()
		return pause(ctx, 2*margin)
	}
	summary := x.run(
		fault{"a replica is stopped between COMMIT and reply", stopBetweenCommitAndReply},
		fault{"a replica is killed", func(context.Context) error { other.restart(t); return nil }},
		fault{"a replica is stopped for longer than a lease", stopped(one.Process, lease+margin)},
		fault{"a replica is stopped between COMMIT and reply", stopBetweenCommitAndReply},
	)
	if summary.Fleet.Redeliveries == 0 {
		v.blame("no grant was delivered again: the run was too tame")
	}
}

func brokerFaults(t *testing.T, v *verdict) {
	t.Helper()
	x := newExperiment(t, v)
	x.deploy(links{}, links{})
	x.run(
		fault{"the broker is killed", func(ctx context.Context) error {
			x.broker.Kill()
			err := pause(ctx, 2*margin)
			x.broker.Start()
			return err
		}},
		fault{"the broker is stopped for longer than the margin", stopped(x.broker.Process, 2*margin)},
		fault{"the broker is restarted", func(context.Context) error {
			x.broker.Kill()
			x.broker.Start()
			return nil
		}},
	)
}

func redisFaults(t *testing.T, v *verdict) {
	t.Helper()
	x := newExperiment(t, v, "--appendonly", "yes")
	x.deploy(links{}, links{})
	wipe := func(ctx context.Context) error {
		client := redis.NewClient(&redis.Options{Addr: x.redis.Addr})
		defer func() { _ = client.Close() }()
		return client.FlushAll(ctx).Err()
	}
	x.run(
		fault{"Redis is wiped", wipe},
		fault{"Redis is restarted with its data", func(context.Context) error {
			x.redis.Kill()
			x.redis.Start()
			return nil
		}},
		fault{"Redis is stopped", stopped(x.redis.Process, 2*margin)},
		fault{"Redis is restarted without data", func(context.Context) error {
			x.redis.Kill()
			x.redis.Restore(t, nil)
			x.redis.Start()
			return nil
		}},
		fault{"Redis is wiped", wipe},
	)
}

func postgresFaults(t *testing.T, v *verdict) {
	t.Helper()
	x := newExperiment(t, v)
	x.deploy(links{}, links{})
	immediate := func(context.Context) error {
		x.postgres.Immediate()
		x.postgres.Start()
		return nil
	}
	x.run(
		fault{"Postgres is stopped immediately", immediate},
		fault{"the connections to Postgres are killed", func(ctx context.Context) error {
			for range 100 { // often, so that reports are under way
				if _, err := x.db.ExecContext(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
					WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`); err != nil {
					return err
				}
				if err := pause(ctx, 20*time.Millisecond); err != nil {
					return err
				}
			}
			return nil
		}},
		fault{"Postgres is stopped immediately", immediate},
	)
}

// splitBrain has each replica speak to a Redis of its own for a while. The
// second time, that of the second replica remembers the first.
func splitBrain(t *testing.T, v *verdict) {
	t.Helper()
	x := newExperiment(t, v)
	second := testservers.Redis(t)
	one, other := testservers.NewProxy(t, x.redis.Addr), testservers.NewProxy(t, x.redis.Addr)
	x.deploy(links{redisURL: "redis://" + one.Addr}, links{redisURL: "redis://" + other.Addr})
	split := func(ctx context.Context) error {
		defer other.Point(x.redis.Addr)
		err := x.conflicting(ctx, func() { other.Point(second.Addr) })
		return errors.Join(err, pause(ctx, lease/2))
	}
	x.run(
		fault{"two masters, the second one empty", split},
		fault{"two masters, the second one stale", split},
	)
}

// rollback has Redis start with an older snapshot, in which slots are free
// that have been granted since.
func rollback(t *testing.T, v *verdict) {
	t.Helper()
	x := newExperiment(t, v)
	x.deploy(links{}, links{})
	x.run(
		fault{"Redis is rolled back to an older snapshot", func(ctx context.Context) error {
			snapshot, err := x.roomySnapshot(ctx)
			if err != nil {
				return err
			}
			if err := pause(ctx, lease/2); err != nil {
				return err
			}
			if err := x.untilRecovered(ctx); err != nil {
				return err
			}
			x.redis.Kill()
			x.redis.Restore(t, snapshot)
			x.redis.Start()
			// Slots that Redis gives now are refused by the ledger, or Redis is mended
			// before it gives any: that is a race of reports with reconciliation.
			if err := x.untilAgreed(ctx); err != nil {
				return err
			}
			return x.untilAllGrant(ctx)
		}},
	)
}

// roomySnapshot saves what Redis knows while at least a third of the slots is
// free, for which the pool is paused for a moment.
func (x *experiment) roomySnapshot(ctx context.Context) ([]byte, error) {
	if err := x.setPaused(ctx, true); err != nil {
		return nil, err
	}
	err := poll(ctx, look, func() bool {
		s, err := x.slots.Snapshot(ctx, pool)
		return err == nil && len(s.Leases) <= capacity*2/3
	})
	if err != nil {
		return nil, err
	}
	snapshot := x.redis.Snapshot(x.t)
	return snapshot, x.setPaused(ctx, false)
}

// setPaused asks until it is done: a busy machine may cut the first call off.
func (x *experiment) setPaused(ctx context.Context, paused bool) error {
	operator := simulator.NewOperator(x.fleet.URL, adminToken)
	return poll(ctx, scrape, func() bool {
		return operator.PutPool(ctx, pool, simulator.Pool{
			Capacity: capacity, LeaseMS: lease.Milliseconds(), Paused: paused,
		}) == nil
	})
}

// conflicting brings about what makes Redis and the ledger disagree, and waits
// until the ledger has refused slots that Redis gave, and then until each
// replica has granted.
func (x *experiment) conflicting(ctx context.Context, disagree func()) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	before, err := x.conflicts(ctx)
	if err != nil {
		return err
	}
	disagree()
	var now float64
	if err := poll(ctx, scrape, func() bool {
		now, err = x.conflicts(ctx)
		return err == nil && now > before
	}); err != nil {
		return fmt.Errorf("no conflict between Redis and the ledger: %w", err)
	}
	x.t.Logf("%v conflicts at least", now-before)
	return x.untilAllGrant(ctx)
}

// untilAllGrant waits until each replica has granted, over each transport.
func (x *experiment) untilAllGrant(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	if silent, err := x.untilGranted(ctx); err != nil {
		return fmt.Errorf("no grant by %q: %w", silent, err)
	}
	return nil
}

// stopped pauses a process for a while.
func stopped(p *testservers.Process, d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		p.Pause()
		defer p.Resume()
		return pause(ctx, d)
	}
}

// restart kills a replica and starts it again; what it wrote must not tell of
// a data race.
func (r *replica) restart(t *testing.T) {
	t.Helper()
	r.Signal(syscall.SIGKILL)
	if said := r.Output(); strings.Contains(said, "DATA RACE") {
		t.Errorf("the replica that was killed said:\n%s", said)
	}
	r.Start()
}
