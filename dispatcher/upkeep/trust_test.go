package upkeep

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// steppingLedger is a ledger whose clock may step and whose answers may be slow. Only the methods of the clock may be called.
type steppingLedger struct {
	Ledger

	now, own time.Time       // of the ledger and of the replica
	delay    time.Duration   // time from the reading of the ledger's clock to the answer
	lengths  []time.Duration // lengths of the leases in force
}

func (l *steppingLedger) pass(t time.Duration) { l.now, l.own = l.now.Add(t), l.own.Add(t) }

func (l *steppingLedger) LeaseClock(context.Context) (store.LeaseClock, error) {
	defer l.pass(l.delay)
	return store.LeaseClock{Now: l.now, Lengths: l.lengths}, nil
}

func (l *steppingLedger) StoreClockPair(context.Context, store.ClockPair) error { return nil }

// TestASlowReadingIsNoStep checks the log about the ledger's clock. A step forward must be logged. A reading that takes longer than clockSlack must
// not be logged: on a busy machine, a reading may take so much time.
func TestASlowReadingIsNoStep(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	ledger := &steppingLedger{now: clockStart(), own: clockStart()}
	k := &Keeper{guard: &clockGuard{}, config: Config{Ledger: ledger, Logger: slog.New(slog.NewTextHandler(&log, nil)), Now: func() time.Time { return ledger.own }}}
	for _, c := range []struct {
		delay, step time.Duration
		warned      bool
	}{{3 * clockSlack, 0, false}, {3 * clockSlack, 0, false}, {0, 0, false}, {0, 3 * clockSlack, true}} {
		ledger.pass(time.Second)
		ledger.now, ledger.delay = ledger.now.Add(c.step), c.delay
		if _, err := k.readLapseCutoffs(t.Context()); err != nil {
			t.Fatal(err)
		}
		ledger.lengths = []time.Duration{time.Hour} // granted after the first reading
		if warned := strings.Contains(log.String(), "not trusted"); warned != c.warned {
			t.Errorf("a reading of %s after a step of %s: logged %t, want %t\n%s", c.delay, c.step, warned, c.warned, &log)
		}
	}
}
