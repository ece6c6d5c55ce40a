package dispatcher_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
)

// stoppedClock stands still but where a test moves it.
type stoppedClock struct{ past atomic.Int64 }

func (c *stoppedClock) now() time.Time {
	return time.Unix(1_800_000_000, 0).Add(time.Duration(c.past.Load()))
}

func (c *stoppedClock) pass(d time.Duration) { c.past.Add(int64(d)) }

// refusing is a bench with a full pool "a", whose readings are counted.
func refusing(t *testing.T, test func(b *bench, clock *stoppedClock, views func() int)) {
	t.Helper()
	for name, open := range map[string]func(testing.TB, ...func(*dispatcher.Config)) *bench{"embedded": embedded, "servers": servers} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock, spies := &stoppedClock{}, &spies{}
			b := open(t, pushing(&wakes{}), spies.config, func(c *dispatcher.Config) { c.Now, c.Recall = clock.now, true })
			b.pool("a", 1, 300*time.Second)
			b.batch("a", nil, "holder", "d", "e")
			test(b, clock, func() int { return spies.answers("Views") })
		})
	}
}

// A device that asks again at once is answered from memory, for a moment; what
// else it reports is looked at.
func TestARepeatedRefusalComesFromMemory(t *testing.T) {
	t.Parallel()
	refusing(t, func(b *bench, clock *stoppedClock, views func() int) {
		b.t.Helper()
		b.expectReason("holder", `{}`, devices.ReasonGranted)
		first := b.expectReason("d", `{}`, devices.ReasonFull)
		views()
		clock.pass(900 * time.Millisecond)
		again := b.expectReason("d", `{"id":"7"}`, devices.ReasonFull)
		if n := views(); n != 0 {
			b.t.Errorf("the ledger was read %d times", n)
		}
		if again.Re != "7" || again.ReportAfterMS > first.ReportAfterMS-899 || again.ReportAfterMS < first.ReportAfterMS-901 {
			b.t.Errorf("again %+v, 900 ms after %+v", again, first)
		}
		b.expectReason("d", `{"accept":false}`, devices.ReasonDeclined)
		b.expectReason("d", `{"attributes":{"a":1}}`, devices.ReasonFull)
		if n := views(); n == 0 {
			b.t.Error("what was more than a question was not looked at")
		}
		clock.pass(time.Second)
		b.expectReason("d", `{}`, devices.ReasonFull)
		if n := views(); n == 0 {
			b.t.Error("still answered from memory")
		}
	})
}

// A device that can be told of a slot is kept from it for 100 ms at most, and is
// asked back then.
func TestWhoCanBeToldIsRefusedFromMemoryBriefly(t *testing.T) {
	t.Parallel()
	refusing(t, func(b *bench, clock *stoppedClock, views func() int) {
		b.t.Helper()
		b.registered("d")
		b.expectReason("holder", `{}`, devices.ReasonGranted)
		b.expectPushed("d", devices.ReasonFull)
		views()
		clock.pass(60 * time.Millisecond)
		if again := b.expectPushed("d", devices.ReasonFull); again.ReportAfterMS < 40 || again.ReportAfterMS > 42 || views() != 0 {
			b.t.Errorf("again %+v", again)
		}
		clock.pass(40 * time.Millisecond)
		b.expectPushed("d", devices.ReasonFull)
		if views() == 0 {
			b.t.Error("still answered from memory")
		}
	})
}

// A slot that falls free ends what is remembered.
func TestAFreeSlotEndsRefusalsFromMemory(t *testing.T) {
	t.Parallel()
	refusing(t, func(b *bench, _ *stoppedClock, _ func() int) {
		b.t.Helper()
		held := b.granted("holder")
		b.expectReason("d", `{}`, devices.ReasonFull)
		b.ended("holder", held, "succeeded", "", devices.OutcomeRecorded)
		b.expectReason("d", `{}`, devices.ReasonGranted)
		b.expectReason("e", `{}`, devices.ReasonFull)
		b.pool("a", 2, 300*time.Second)
		if _, err := b.Upkeep.ReconcilePool(b.ctx, "a"); err != nil {
			b.t.Fatal(err)
		}
		b.expectReason("e", `{}`, devices.ReasonGranted)
	})
}
