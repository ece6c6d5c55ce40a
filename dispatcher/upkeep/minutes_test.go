package upkeep

import (
	"context"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

// sealedLog is a ledger with the events 1 to last. It records up to which event the pass has sealed them (a seal
// protects events against changes).
type sealedLog struct {
	Ledger

	last, sealed int64
	isComplete   bool // no transaction is open that could add an event up to last
}

func (l *sealedLog) ReadEventPosition(context.Context, int64) (store.EventPosition, error) {
	return store.EventPosition{Last: l.last}, nil
}

func (l *sealedLog) EventsComplete(context.Context, store.EventPosition) (bool, error) {
	return l.isComplete, nil
}

func (l *sealedLog) CountMinutes(context.Context, int64, int) (int, error) { return 0, nil }

func (l *sealedLog) SealEvents(_ context.Context, lastEvent int64, limit int) (int, error) {
	n := min(lastEvent-l.sealed, int64(limit))
	l.sealed += n
	return int(n), nil
}

// TestSealingIsBoundedAndWaitsForOpenTransactions checks which events the pass seals: only complete events, and of
// many events a part in each run, until it has caught up.
func TestSealingIsBoundedAndWaitsForOpenTransactions(t *testing.T) {
	t.Parallel()
	l := &sealedLog{last: 120_000}
	k := &Keeper{config: Config{Ledger: l}, minutes: &minuteProgress{}}
	run := func(want int64) {
		t.Helper()
		must.Succeed(t, k.CountEventsByMinute(t.Context()))
		must.Succeed(t, k.SealEvents(t.Context()))
		if l.sealed != want {
			t.Errorf("%d events sealed, want %d", l.sealed, want)
		}
	}
	run(0)
	l.isComplete = true
	run(50_000)
	run(100_000)
	l.isComplete, l.last = false, 200_000
	run(120_000)
	run(120_000)
	l.isComplete = true
	run(170_000)
}
