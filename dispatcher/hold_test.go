package dispatcher

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/store"
)

// A grant is steered by its own kind, as soon as that is known.
func TestResultsAreExpectedByKind(t *testing.T) {
	t.Parallel()
	d := New(Config{Jitter: func() float64 { return 0.5 }})
	expect := func(kind string, want time.Duration) {
		t.Helper()
		want = want * 85 / 100
		if got := d.whenReady("p", kind, time.Hour); got < want-time.Millisecond || got > want+time.Millisecond {
			t.Errorf("%s expected after %s, want %s", kind, got, want)
		}
	}
	expect("long", unknownHold)
	d.holds.add("p", "long", 10*time.Minute)
	expect("long", 10*time.Minute)
	expect("short", 10*time.Minute) // as all of the pool, so far
	d.holds.add("p", "short", 10*time.Second)
	expect("short", 10*time.Second)
	expect("long", 10*time.Minute)
}

// A task that takes far longer than its pool's usual ones is asked by its lease,
// and not every second.
func TestALongTaskAmongShortOnesIsAskedRarely(t *testing.T) {
	t.Parallel()
	start := time.Now()
	for _, test := range []struct {
		mean, works, lease time.Duration
		most               int // reports until it is done, the one with its result included
	}{
		{time.Second, 12 * time.Second, 300 * time.Second, 3},
		{time.Second, 100 * time.Second, 300 * time.Second, 12},
		{100 * time.Millisecond, 12 * time.Second, 300 * time.Second, 3},
		{20 * time.Second, 30 * time.Second, 300 * time.Second, 6}, // one of the usual ones
		{time.Second, 5 * time.Second, 9 * time.Second, 5},         // a short lease
	} {
		d := New(Config{Jitter: func() float64 { return 0.5 }})
		d.holds.add("p", "k", test.mean)
		g, asked := store.Grant{Pool: "p", Kind: "k", GrantedAt: start, LeaseLength: test.lease}, 1
		at := d.whenReady("p", "k", test.lease)
		for ; at < test.works; asked++ {
			at += d.stillWorks(g, start.Add(at))
		}
		if asked > test.most || at > test.works+max(test.works/4, test.lease/30, decision.Soonest) {
			t.Errorf("%s of work among %s, lease %s: asked %d times, the last time after %s", test.works, test.mean, test.lease, asked, at)
		}
	}
}

// A device that reports only when told to holds its place not much longer than it
// works, however that began.
func TestWhoReportsOnlyWhenToldHoldsAPlaceNotMuchLonger(t *testing.T) {
	t.Parallel()
	draw := rand.New(rand.NewPCG(1, 2))
	d := New(Config{Jitter: draw.Float64})
	d.holds.add("p", "k", 10*time.Minute) // the first took long
	const devices, last = 2000, 500
	var worked, held time.Duration
	start := time.Now()
	for i := range devices {
		works := time.Duration((10 + 20*draw.Float64()) * float64(time.Second))
		g := store.Grant{Pool: "p", Kind: "k", GrantedAt: start, LeaseLength: 2 * time.Hour}
		holds := d.whenReady("p", "k", 2*time.Hour)
		for holds < works {
			holds += d.stillWorks(g, start.Add(holds))
		}
		d.holds.add("p", "k", holds)
		if i >= devices-last {
			worked, held = worked+works, held+holds
		}
	}
	if share := float64(held) / float64(worked); share > 1.25 {
		t.Errorf("places are held %.2f times as long as devices work", share)
	} else {
		t.Logf("places are held %.2f times as long as devices work", share)
	}
}

func TestEachPoolIsAskedInTurn(t *testing.T) {
	t.Parallel()
	l := newPoolLines()
	for i := range poolsPerLook + 100 {
		l.add(time.Duration(i).String())
	}
	seen := map[string]int{}
	for range 6 {
		for _, pool := range l.next() {
			seen[pool]++
		}
		l.search(nil)
	}
	for pool, n := range seen {
		if n != 5 {
			t.Errorf("%s was asked %d times, want 5", pool, n)
		}
	}
	if len(seen) != poolsPerLook+100 {
		t.Errorf("%d pools were asked", len(seen))
	}
}

// Of more pools with work than one pass searches, each is searched once in a round.
func TestEachPoolWithWorkIsSearchedInTurn(t *testing.T) {
	t.Parallel()
	for pools, passes := range map[int]int{1: 1, searchesAPass: 1, searchesAPass + 1: 2, 3000: 3000 / searchesAPass} {
		l := newPoolLines()
		var work []string
		for i := range pools {
			l.add(fmt.Sprintf("idle%05d", i))
			l.add(fmt.Sprintf("work%05d", i))
			work = append(work, fmt.Sprintf("work%05d", i))
		}
		seen := map[string]int{}
		for range passes + 2*pools/poolsPerLook + 1 { // those without work take looks, too
			l.next()
			searched := l.search(work)
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

// Lines in which nothing can be handed on are tidied in turn, all of them where
// there are few.
func TestEachLineIsTidiedInTurn(t *testing.T) {
	t.Parallel()
	for pools, passes := range map[int]int{0: 1, 7: 1, poolsTidied: 1, 3 * poolsTidied: 3, 3*poolsTidied + 1: 4} {
		l, seen := newPoolLines(), map[string]bool{}
		var waiting []string
		for i := range pools {
			waiting = append(waiting, fmt.Sprintf("%05d", i))
		}
		for range passes {
			tidied := l.setWaiting(waiting)
			if len(tidied) > poolsTidied {
				t.Errorf("%d pools in one pass", len(tidied))
			}
			for _, pool := range tidied {
				seen[pool] = true
			}
		}
		if len(seen) != pools || len(l.amongWaiting(waiting)) != pools {
			t.Errorf("%d of %d pools were tidied in %d passes", len(seen), pools, passes)
		}
	}
}
