package marks

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"
)

// TestNoMarkIsMissing checks with a model how long a device that has work can be treated as idle because its mark
// is missing: at most five seconds, and never by the replica that queued the work. The same bound holds for a wait
// in a mark that a change of the ledger has made wrong. This must hold whatever happens
// to Redis and the replicas between any two steps. With MARKS=1 the test runs a million rounds.
func TestNoMarkIsMissing(t *testing.T) {
	t.Parallel()
	worlds, rounds := 100, 500
	if os.Getenv("MARKS") != "" {
		worlds = 2000
	}
	var idle, worked, kept atomic.Int64
	t.Cleanup(func() {
		if all := int64(worlds * rounds); idle.Load() < all/20 || worked.Load() < all/5 || kept.Load() < all/100 {
			t.Errorf("nothing is shown: %d times idle, %d with work, %d waits, of %d", idle.Load(), worked.Load(), kept.Load(), all)
		}
	})
	for seed := range worlds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, uint64(seed))
			i, n := w.runRounds(rounds)
			idle.Add(int64(i))
			worked.Add(int64(n))
			kept.Add(int64(w.keptWaits))
			if w.missedWork > 0 {
				t.Errorf("%d reports of devices with work were told that there is none", w.missedWork)
			}
			if w.wrongWaits > 0 {
				t.Errorf("%d reports were answered from a wait that was out of date for too long", w.wrongWaits)
			}
		})
	}
}
