package dispatcher_test

import (
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// manualClock is a clock that advances only if the test calls advance.
type manualClock struct {
	mu      sync.Mutex
	current time.Time
}

func (e *manualClock) now() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.current
}

func (e *manualClock) advance(by time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.current = e.current.Add(by)
}

// idleSeconds returns the idle slot-seconds that a replica has counted for pool a. One free slot for one second is one slot-second.
func idleSeconds(t *testing.T, r *prometheus.Registry) float64 {
	t.Helper()
	families, err := r.Gather()
	must.Succeed(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "dispatcher_slot_idle_seconds_total" && m.GetLabel()[0].GetValue() == "a" {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// runWithManualClock runs a test on a dispatcher whose own clock advances only if the test advances it. The clock
// of the ledger runs as usual.
func runWithManualClock(t *testing.T, test func(b *testBench, clock *manualClock, r func() float64)) {
	t.Helper()
	for name, open := range map[string]func(testing.TB, ...func(*dispatcher.Config)) *testBench{"embedded": newEmbeddedBench, "servers": newServerBench} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock, registry := &manualClock{current: time.Now()}, prometheus.NewRegistry()
			b := open(t, func(c *dispatcher.Config) { c.Now, c.Registerer = clock.now, registry })
			test(b, clock, func() float64 { return idleSeconds(t, registry) })
		})
	}
}

// countIdleAfter advances the replica's clock by elapsed and then calls CountIdleSlots. CountIdleSlots counts only if enough time of the ledger
// has passed that no replica has counted yet.
func (b *testBench) countIdleAfter(clock *manualClock, elapsed time.Duration) {
	b.t.Helper()
	clock.advance(elapsed)
	b.must(b.Upkeep.CountIdleSlots(b.ctx))
}

// awaitIdleCount calls countIdleAfter until the counted idle time grows, and returns by how much it grew. Before
// each call it advances the replica's clock by interval.
func (b *testBench) awaitIdleCount(clock *manualClock, interval time.Duration, count func() float64) float64 {
	b.t.Helper()
	before := count()
	await.True(b.t, "idle time", func() bool {
		b.countIdleAfter(clock, interval)
		return count() != before
	})
	return count() - before
}

// The number of idle slots of a pool must be the number of free slots that devices which reported lately could use.
func TestIdleSlotsAreCounted(t *testing.T) {
	t.Parallel()
	runWithManualClock(t, func(b *testBench, clock *manualClock, count func() float64) {
		b.createPool("a", 3, minute)
		b.countIdleAfter(clock, 0) // the first call only records the time
		for _, device := range []string{"d1", "d2"} {
			b.sendReport(device, `{"id":"1","accept":false}`)
		}
		b.createBatch("a", nil, "d1", "d2", "away-1", "away-2", "away-3")
		b.countIdleAfter(clock, time.Second)
		if n := count(); n != 0 {
			b.t.Errorf("%f slot-seconds, and nobody was seen", n)
		}
		b.must(b.Seen.Flush(b.ctx))
		// The replica's clock advances one second between the calls. The ledger assigns at least 0.9 s of its time to each call. The sums
		// are not exact, because they are sums of floating-point numbers.
		if n := b.awaitIdleCount(clock, time.Second, count); n < 1.799 || n > 2.001 {
			b.t.Errorf("%f slot-seconds in one second, want those of two slots", n)
		}
		b.expectGrant("d1")
		if n := b.awaitIdleCount(clock, time.Second, count); n < 0.899 || n > 1.001 {
			b.t.Errorf("%f slot-seconds in one second, want those of one slot", n)
		}
		b.expectGrant("d2")
		before := count()
		for range 3 {
			b.countIdleAfter(clock, time.Minute)
		}
		if n := count(); n != before {
			b.t.Errorf("%f slot-seconds more, and who is there has its slot", n-before)
		}
	})
}

// A full pool must have no idle slots. After a slot has become free, a call must count as idle at most the time since the previous call of this
// replica.
func TestAFullPoolIsNotIdle(t *testing.T) {
	t.Parallel()
	runWithManualClock(t, func(b *testBench, clock *manualClock, count func() float64) {
		b.createPool("a", 1, minute)
		b.createBatch("a", nil, "d1", "d2", "d3")
		g := b.expectGrant("d1")
		b.sendReport("d2", `{"id":"1"}`)
		b.sendReport("d3", `{"id":"1"}`)
		b.must(b.Seen.Flush(b.ctx))
		for range 3 {
			b.countIdleAfter(clock, time.Second)
		}
		if n := count(); n != 0 {
			b.t.Errorf("%f slot-seconds of a full pool", n)
		}
		b.sendResult("d1", g, "succeeded", "", "recorded")
		// The ledger assigns at least 0.9 s to the call.
		if n := b.awaitIdleCount(clock, 10*time.Millisecond, count); n > 0.011 {
			b.t.Errorf("%f slot-seconds, but the replica looked 10 ms ago", n)
		}
	})
}

// Two replicas count idle time at once. Together they must count as much as one replica would.
func TestReplicasShareIdleTime(t *testing.T) {
	t.Parallel()
	clock, first, second := &manualClock{current: time.Now()}, prometheus.NewRegistry(), prometheus.NewRegistry()
	b := newServerBench(t, func(c *dispatcher.Config) { c.Now, c.Registerer = clock.now, first })
	other := dispatcher.New(dispatcher.Config{
		Store: b.store, Semaphore: b.semaphore, Now: clock.now, Registerer: second, ReportPeriod: time.Hour,
	})
	b.createPool("a", 3, minute)
	b.sendReport("d1", `{"id":"1","accept":false}`)
	b.createBatch("a", nil, "d1")
	must.Succeed(t, b.Seen.Flush(b.ctx))
	began, err := b.store.Clock(b.ctx)
	must.Succeed(t, err)
	_, err = b.store.TakeIdleTime(b.ctx, 0)
	must.Succeed(t, err)
	count := func() float64 { return idleSeconds(t, first) + idleSeconds(t, second) }
	await.True(t, "idle time", func() bool {
		clock.advance(time.Hour) // without the ledger each replica would count the whole time
		var wait sync.WaitGroup
		for _, d := range []*dispatcher.Dispatcher{b.Dispatcher, other} {
			wait.Go(func() {
				if err := d.Upkeep.CountIdleSlots(b.ctx); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		return count() >= 3
	})
	ended, err := b.store.Clock(b.ctx)
	must.Succeed(t, err)
	if n, passed := count(), ended.Sub(began).Seconds(); n > passed+0.001 {
		t.Errorf("%f slot-seconds of one slot in %f s", n, passed)
	}
}
