package dispatcher

import (
	"cmp"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

const longAgain = 30 // a task that takes far longer than usual is asked again after this part of its lease

// timing says when devices are to ask again.
func (d *Dispatcher) timing() decision.Timing {
	return decision.Timing{Period: d.config.ReportPeriod, Jitter: d.jitter, Away: func() time.Duration {
		now := d.now()
		return max(d.ledgerAway.lasted(now), d.semaphoreAway.lasted(now))
	}}
}

// AfterRefusal says when a device is to come back whose report was refused
// whole, jittered.
func (d *Dispatcher) AfterRefusal(reason devices.Reason) time.Duration {
	return d.timing().AfterRefusal(reason)
}

// pace is what the line of a pool goes by when it tells a device to come again.
func (d *Dispatcher) pace(pool string) slots.Pace {
	return slots.Pace{Hold: d.holds.mean(pool), Soonest: decision.Soonest, Period: d.config.ReportPeriod, Offer: d.config.Offer}
}

// whenReady is when the result of a grant is likely there, by how long tasks of
// its kind were held lately, at the latest at half of the lease, when it must be
// renewed. It is somewhat less than that: of a device that reports only when told
// to, nothing sooner would ever be seen, and the time could only grow.
func (d *Dispatcher) whenReady(pool, kind string, lease time.Duration) time.Duration {
	return min(decision.Bounded(d.usual(pool, kind)), lease/2)
}

// usual is 0.8 to 0.9 of how long a task of a kind is usually held.
func (d *Dispatcher) usual(pool, kind string) time.Duration {
	return time.Duration(float64(d.holds.meanOf(pool, kind)) * (0.8 + 0.1*d.jitter()))
}

// stillWorks is when to ask a device that works on a grant: when it is likely
// ready, and when it should have been, again after an eighth of what it took. Of a
// task that takes twice as long as its like that says nothing more: it is asked by
// its lease.
func (d *Dispatcher) stillWorks(g store.Grant, now time.Time) time.Duration {
	worked := now.Sub(g.GrantedAt)
	again := worked / 8
	if worked >= 2*d.holds.meanOf(g.Pool, g.Kind) {
		again = max(again, g.LeaseLength/longAgain)
	}
	return decision.Bounded(max(d.usual(g.Pool, g.Kind)-worked, again))
}

// holdTimes keeps the usual time a grant of each pool is held, and of each kind
// of task in it, as this replica saw it: exponentially weighted means.
type holdTimes struct {
	mu    sync.Mutex
	means map[string]time.Duration
	kinds map[poolKind]time.Duration
}

type poolKind struct{ pool, kind string }

const (
	holdWeight  = 0.05            // of the newest hold time in the mean
	unknownHold = 5 * time.Second // stands in until a pool has ended a grant
	mostKinds   = 10_000          // beyond it all are forgotten: a bound, not a policy
)

func newHoldTimes() *holdTimes {
	return &holdTimes{means: make(map[string]time.Duration), kinds: make(map[poolKind]time.Duration)}
}

func (h *holdTimes) add(pool, kind string, held time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.kinds) >= mostKinds {
		clear(h.kinds)
	}
	h.means[pool] = moved(h.means[pool], held)
	of := poolKind{pool, kind}
	h.kinds[of] = moved(h.kinds[of], held)
}

// moved is the mean after one more; 0: there was none.
func moved(mean, held time.Duration) time.Duration {
	mean = cmp.Or(mean, held)
	return mean + time.Duration(holdWeight*float64(held-mean))
}

func (h *holdTimes) mean(pool string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return cmp.Or(h.means[pool], unknownHold)
}

// known says whether a grant of the pool has ended here.
func (h *holdTimes) known(pool string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.means[pool] != 0
}

// meanOf is that of a kind, or of the pool until the kind is known.
func (h *holdTimes) meanOf(pool, kind string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return cmp.Or(h.kinds[poolKind{pool, kind}], h.means[pool], unknownHold)
}
