package dispatcher_test

import (
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/dispatcher"
)

// elapsing is a clock of elapsed time that only advances if a test calls pass.
type elapsing struct {
	mu sync.Mutex
	at time.Time
}

func (e *elapsing) now() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.at
}

func (e *elapsing) pass(by time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at = e.at.Add(by)
}

// idleSeconds returns the idle slot-seconds that a replica counted for pool a.
func idleSeconds(t *testing.T, r *prometheus.Registry) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "dispatcher_slot_idle_seconds_total" && m.GetLabel()[0].GetValue() == "a" {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// idleBench runs a test on a dispatcher whose own clock only advances if the test moves it. The ledger's
// clock runs as usual.
func idleBench(t *testing.T, test func(b *bench, clock *elapsing, r func() float64)) {
	t.Helper()
	for name, open := range map[string]func(testing.TB, ...func(*dispatcher.Config)) *bench{"embedded": embedded, "servers": onServers} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock, registry := &elapsing{at: time.Now()}, prometheus.NewRegistry()
			b := open(t, func(c *dispatcher.Config) { c.Now, c.Registerer = clock.now, registry })
			test(b, clock, func() float64 { return idleSeconds(t, registry) })
		})
	}
}

// look advances the replica's clock by passed and calls CountIdle, which counts if the ledger has enough idle
// time to assign.
func (b *bench) look(clock *elapsing, passed time.Duration) {
	b.t.Helper()
	clock.pass(passed)
	if err := b.Upkeep.CountIdle(b.ctx); err != nil {
		b.t.Fatal(err)
	}
}

// untilCounted calls look until the count grows, and returns the increase. Before each call it advances the
// replica's clock by apart.
func (b *bench) untilCounted(clock *elapsing, apart time.Duration, count func() float64) float64 {
	b.t.Helper()
	before := count()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(minute); count() == before; <-tick.C {
		if time.Now().After(deadline) {
			b.t.Fatal("nothing is counted")
		}
		b.look(clock, apart)
	}
	return count() - before
}

// The number of idle slots is the number of free slots that devices that are present could use.
func TestIdleSlotsAreCounted(t *testing.T) {
	t.Parallel()
	idleBench(t, func(b *bench, clock *elapsing, count func() float64) {
		b.pool("a", 3, minute)
		b.look(clock, 0) // the first call only records the time
		for _, device := range []string{"d1", "d2"} {
			b.report(device, `{"id":"1","accept":false}`)
		}
		b.batch("a", nil, "d1", "d2", "away-1", "away-2", "away-3")
		b.look(clock, time.Second)
		if n := count(); n != 0 {
			b.t.Errorf("%f slot-seconds, and nobody was seen", n)
		}
		if err := b.Seen.Flush(b.ctx); err != nil {
			b.t.Fatal(err)
		}
		// The calls are one second apart on the replica's clock, and the ledger assigns at least 0.9 s to
		// each. Sums of such values are not exact.
		if n := b.untilCounted(clock, time.Second, count); n < 1.799 || n > 2.001 {
			b.t.Errorf("%f slot-seconds in one second, want those of two slots", n)
		}
		b.granted("d1")
		if n := b.untilCounted(clock, time.Second, count); n < 0.899 || n > 1.001 {
			b.t.Errorf("%f slot-seconds in one second, want those of one slot", n)
		}
		b.granted("d2")
		before := count()
		for range 3 {
			b.look(clock, time.Minute)
		}
		if n := count(); n != before {
			b.t.Errorf("%f slot-seconds more, and who is there has its slot", n-before)
		}
	})
}

// A full pool has no idle slots. Time before the last call of the replica does not count as idle.
func TestAFullPoolIsNotIdle(t *testing.T) {
	t.Parallel()
	idleBench(t, func(b *bench, clock *elapsing, count func() float64) {
		b.pool("a", 1, minute)
		b.batch("a", nil, "d1", "d2", "d3")
		g := b.granted("d1")
		b.report("d2", `{"id":"1"}`)
		b.report("d3", `{"id":"1"}`)
		if err := b.Seen.Flush(b.ctx); err != nil {
			b.t.Fatal(err)
		}
		for range 3 {
			b.look(clock, time.Second)
		}
		if n := count(); n != 0 {
			b.t.Errorf("%f slot-seconds of a full pool", n)
		}
		b.ended("d1", g, "succeeded", "", "recorded")
		// The ledger assigns at least 0.9 s.
		if n := b.untilCounted(clock, 10*time.Millisecond, count); n > 0.011 {
			b.t.Errorf("%f slot-seconds, but the replica looked 10 ms ago", n)
		}
	})
}

// Two replicas together count as much as one replica would.
func TestReplicasShareIdleTime(t *testing.T) {
	t.Parallel()
	clock, first, second := &elapsing{at: time.Now()}, prometheus.NewRegistry(), prometheus.NewRegistry()
	b := onServers(t, func(c *dispatcher.Config) { c.Now, c.Registerer = clock.now, first })
	other := dispatcher.New(dispatcher.Config{
		Store: b.store, Semaphore: b.semaphore, Now: clock.now, Registerer: second, ReportPeriod: time.Hour,
	})
	b.pool("a", 3, minute)
	b.report("d1", `{"id":"1","accept":false}`)
	b.batch("a", nil, "d1")
	if err := b.Seen.Flush(b.ctx); err != nil {
		t.Fatal(err)
	}
	began, err := b.store.Clock(b.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.store.TakeIdleTime(b.ctx, 0); err != nil {
		t.Fatal(err)
	}
	count := func() float64 { return idleSeconds(t, first) + idleSeconds(t, second) }
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(minute); count() < 3; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("nothing is counted")
		}
		clock.pass(time.Hour) // without the ledger each replica would count the whole time
		var wait sync.WaitGroup
		for _, d := range []*dispatcher.Dispatcher{b.Dispatcher, other} {
			wait.Go(func() {
				if err := d.Upkeep.CountIdle(b.ctx); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
	}
	ended, err := b.store.Clock(b.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if n, passed := count(), ended.Sub(began).Seconds(); n > passed+0.001 {
		t.Errorf("%f slot-seconds of one slot in %f s", n, passed)
	}
}
