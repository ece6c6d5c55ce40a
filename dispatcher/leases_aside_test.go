package dispatcher_test

import (
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/store"
)

// setPoolWindows sets the windows of pool "a" in the ledger and in the semaphore.
func (b *bench) setPoolWindows(windows []store.Window) {
	b.t.Helper()
	b.changePool("", func(spec *store.PoolSpec) { spec.Windows = windows })
}

// ahead returns the number of waiting callers ahead of a holder.
func (b *bench) ahead(holder string) int {
	b.t.Helper()
	found, err := b.store.CallersBefore(b.ctx, "a", b.leaseTask(holder))
	b.must(err)
	return found.Ahead
}

// tooLong returns a request for a lease that does not fit into openForAnHour.
func tooLong() dispatcher.LeaseRequest {
	return dispatcher.LeaseRequest{Holder: "too-long", Lease: 24 * time.Hour, Wait: long}
}

// A caller whose lease does not fit into the rest of the window blocks no slot. A caller behind it gets the
// slot.
func TestACallerThatDoesNotFitLetsOthersGoFirst(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		b.callers(1)
		b.setPoolWindows(b.openForAnHour())
		waits := b.inLineFor(b.Dispatcher, tooLong())
		b.expectWhy(b.leaseTask("too-long"), []decision.Code{decision.CodePoolWindow}, "less than its lease")
		g := b.leased("fits")
		next := b.inLine(b.Dispatcher, "next", long)
		if ahead := b.ahead("next"); ahead != 0 {
			b.t.Errorf("%d callers count as ahead, want none", ahead)
		}
		b.endLease("fits", g)
		b.endLease("next", next.holds())
		waits.waits()
	})
}

// The same holds for the window of the batch that contains the leases.
func TestACallerThatDoesNotFitTheBatchLetsOthersGoFirst(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.callers(1)
		first := b.leased("first")
		b.setWindows(b.task(first.Task).Batch, b.openForAnHour())
		b.endLease("first", first)
		b.inLineFor(b.Dispatcher, tooLong())
		b.leased("fits")
	})
}

// When its own obstacle is gone, a caller counts again as ahead of the callers that came later.
func TestACallerThatStoodAsideStandsAgain(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.callers(1)
		b.setPoolWindows(b.openForAnHour())
		first := b.inLineFor(b.Dispatcher, tooLong())
		g := b.leased("fits")
		second := b.inLine(b.Dispatcher, "second", long)
		b.setPoolWindows(nil)
		b.eventually("the first caller stands before the second", func() bool { return b.ahead("second") == 1 })
		b.endLease("fits", g)
		first.holds()
		second.waits()
	})
}

// An obstacle for all callers of a pool does not change their order.
func TestAShutPoolKeepsTheOrderOfCallers(t *testing.T) {
	t.Parallel()
	for name, shut := range map[string]func(*bench){
		"paused": func(b *bench) { b.changePool("for the test", func(spec *store.PoolSpec) { spec.Paused = true }) },
		"closed": func(b *bench) { b.setPoolWindows(b.shut()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forServers(t, func(b *bench) {
				b.callers(1)
				shut(b)
				first := b.inLine(b.Dispatcher, "z-first", long)
				second := b.inLine(b.Dispatcher, "second", long)
				if ahead := b.ahead("second"); ahead != 1 {
					b.t.Errorf("%d callers count as ahead of the second, want 1", ahead)
				}
				b.changePool("", func(spec *store.PoolSpec) { spec.Paused, spec.Windows = false, nil })
				first.holds()
				second.waits()
			})
		})
	}
}
