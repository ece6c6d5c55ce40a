package upkeep

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

// walkedLedger is a ledger with devices in pools. Each call of CountWaitingDevices checks one device and takes 10 ms.
type walkedLedger struct {
	Ledger

	clock  time.Time
	pools  map[string][]bool // for each device of a pool, whether it waits
	checks []string          // the pools of the calls
}

func (l *walkedLedger) CountWaitingDevices(_ context.Context, pool string, _ time.Duration, after string, _ int) (store.WaitingCount, error) {
	l.clock, l.checks = l.clock.Add(10*time.Millisecond), append(l.checks, pool)
	devices, n := l.pools[pool], len(after) // the name of device n has n letters
	found := store.WaitingCount{}
	if devices[n] {
		found.Waiting = 1
	}
	if n+1 < len(devices) {
		found.Last = after + "d"
	}
	return found, nil
}

// TestIdleCountGoesOn checks a count of devices that needs more than one pass. The next passes continue the count, each pool has its turn, and
// each pool keeps its previous count until its new count is complete.
func TestIdleCountGoesOn(t *testing.T) {
	t.Parallel()
	ledger := &walkedLedger{clock: time.Unix(1_800_000_000, 0), pools: map[string][]bool{
		"big": {false, true, false, false, true}, "none": {false}, "one": {true},
	}}
	k := &Keeper{config: Config{Ledger: ledger, Now: func() time.Time { return ledger.clock }}, idle: newIdleCounts()}
	open := []store.OpenPool{{Name: "one", Free: 3}, {Name: "big", Free: 3}, {Name: "none", Free: 3}}
	for i, want := range []struct {
		checked        []string
		big, none, one int
	}{
		{[]string{"big", "big", "big"}, 1, 0, 0},
		{[]string{"big", "big", "none"}, 2, 0, 0},
		{[]string{"one", "big", "big"}, 2, 0, 1},
		{[]string{"big", "big", "big"}, 2, 0, 1},
	} {
		ledger.checks = nil
		must.Succeed(t, k.continueWaitingCounts(t.Context(), open))
		if !slices.Equal(ledger.checks, want.checked) {
			t.Errorf("pass %d checked %v, want %v", i, ledger.checks, want.checked)
		}
		for pool, n := range map[string]int{"big": want.big, "none": want.none, "one": want.one} {
			if got := k.idle.lapOf(pool).waitingDevices(3); got != n {
				t.Errorf("pass %d: %d devices wait in pool %s, want %d", i, got, pool, n)
			}
		}
	}
	if got := k.idle.lapOf("big").waitingDevices(1); got != 1 {
		t.Errorf("%d of one free slot could be used", got)
	}
}

// TestIdleCountEndsWithTheFreeSlots checks that the count of the devices of a pool which could use a free slot stops at the number of free
// slots.
func TestIdleCountEndsWithTheFreeSlots(t *testing.T) {
	t.Parallel()
	ledger := &walkedLedger{clock: time.Unix(1_800_000_000, 0), pools: map[string][]bool{"a": {true, true, true}}}
	k := &Keeper{config: Config{Ledger: ledger, Now: func() time.Time { return ledger.clock }}, idle: newIdleCounts()}
	for range 2 {
		must.Succeed(t, k.continueWaitingCounts(t.Context(), []store.OpenPool{{Name: "a", Free: 2}}))
	}
	if got := k.idle.lapOf("a").waitingDevices(2); got != 2 || len(ledger.checks) != 4 {
		t.Errorf("%d devices wait after %d checks, want 2 after 4", got, len(ledger.checks))
	}
}
