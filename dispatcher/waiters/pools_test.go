package waiters

import (
	"fmt"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/slots"
)

func TestEachPoolIsAskedInTurn(t *testing.T) {
	t.Parallel()
	l := newPools(slots.Pace{})
	for i := range poolsPerRead + 100 {
		l.Add(time.Duration(i).String(), 0)
	}
	seen := map[string]int{}
	for range 6 {
		for _, pool := range l.nextPoolsToRead() {
			seen[pool]++
		}
		l.poolsToSearch(nil)
	}
	for pool, n := range seen {
		if n != 5 {
			t.Errorf("%s was asked %d times, want 5", pool, n)
		}
	}
	if len(seen) != poolsPerRead+100 {
		t.Errorf("%d pools were asked", len(seen))
	}
}

// More pools have work than one pass searches. The passes must take turns, so that each pool is searched once.
func TestEachPoolWithWorkIsSearchedInTurn(t *testing.T) {
	t.Parallel()
	for pools, passes := range map[int]int{1: 1, searchesAPass: 1, searchesAPass + 1: 2, 3000: 3000 / searchesAPass} {
		l := newPools(slots.Pace{})
		var work []string
		for i := range pools {
			l.Add(fmt.Sprintf("idle%05d", i), 0)
			l.Add(fmt.Sprintf("work%05d", i), 0)
			work = append(work, fmt.Sprintf("work%05d", i))
		}
		seen := map[string]int{}
		for range passes + 2*pools/poolsPerRead + 1 { // pools without work are also returned by nextPoolsToRead
			l.nextPoolsToRead()
			searched := l.poolsToSearch(work)
			if len(searched) > searchesAPass {
				t.Errorf("%d pools in one pass", len(searched))
			}
			for _, pool := range searched {
				seen[pool]++
			}
		}
		if len(seen) != pools {
			t.Errorf("%d of %d pools with work were searched in %d passes", len(seen), pools, passes)
		}
	}
}

// Some queues have no slot to offer. The passes must tidy them in turn (remove devices that no longer report). If there are at most
// poolsTidied such queues, each pass must tidy all of them.
func TestEachQueueIsTidiedInTurn(t *testing.T) {
	t.Parallel()
	for pools, passes := range map[int]int{0: 1, 7: 1, poolsTidied: 1, 3 * poolsTidied: 3, 3*poolsTidied + 1: 4} {
		l, seen := newPools(slots.Pace{}), map[string]bool{}
		var waiting []string
		for i := range pools {
			waiting = append(waiting, fmt.Sprintf("%05d", i))
		}
		for range passes {
			tidied := l.setPoolsWithWaiters(waiting, true)
			if len(tidied) > poolsTidied {
				t.Errorf("%d pools in one pass", len(tidied))
			}
			for _, pool := range tidied {
				seen[pool] = true
			}
		}
		if len(seen) != pools || len(l.PoolsWithWaiters(waiting)) != pools {
			t.Errorf("%d of %d pools were tidied in %d passes", len(seen), pools, passes)
		}
	}
}

// TestAPartialReadClearsNoWaiters checks the pools whose queues could not be read: devices still wait in them, as far as the replica knows.
func TestAPartialReadClearsNoWaiters(t *testing.T) {
	t.Parallel()
	l, both := newPools(slots.Pace{}), []string{"a", "b"}
	l.setPoolsWithWaiters([]string{"a"}, true)
	l.setPoolsWithWaiters([]string{"b"}, false)
	if got := l.PoolsWithWaiters(both); len(got) != 2 {
		t.Errorf("devices wait in %v, want %v", got, both)
	}
	l.setPoolsWithWaiters([]string{"b"}, true)
	if got := l.PoolsWithWaiters(both); len(got) != 1 || got[0] != "b" {
		t.Errorf("devices wait in %v after a complete read, want b", got)
	}
}

func TestHoldTimesFollow(t *testing.T) {
	t.Parallel()
	h := newPools(slots.Pace{})
	if got := holdTime(h); got != unknownHold {
		t.Errorf("unknown pool: %s", got)
	}
	for range 100 {
		h.RecordHoldTime("a", "k", 20*time.Second)
	}
	if got := holdTime(h); got != 20*time.Second {
		t.Errorf("constant holds: %s", got)
	}
	for range 100 {
		h.RecordHoldTime("a", "k", 2*time.Second)
	}
	if got := holdTime(h); got < 2*time.Second || got > 3*time.Second {
		t.Errorf("after a change: %s, want about 2 s", got)
	}
}

func holdTime(p *Pools) time.Duration {
	usual, _ := p.UsualHoldTime("a")
	return usual
}
