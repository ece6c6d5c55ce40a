package dispatcher

import (
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/store"
)

const longAgain = 30 // a task that takes far longer than usual is asked again after this part of its lease

// timing says when devices are to ask again.
func (d *Dispatcher) timing() decision.Timing {
	return decision.Timing{Period: d.config.ReportPeriod, Jitter: d.config.Jitter, Away: func() time.Duration {
		now := d.config.Now()
		return max(d.away.ledger.lasted(now), d.away.semaphore.lasted(now))
	}}
}

// AfterRefusal says when a device is to come back whose report was refused
// whole, jittered.
func (d *Dispatcher) AfterRefusal(reason devices.Reason) time.Duration {
	return d.timing().AfterRefusal(reason)
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
	return time.Duration(float64(d.Waiters.Pools.HoldOf(pool, kind)) * (0.8 + 0.1*d.config.Jitter()))
}

// stillWorks is when to ask a device that works on a grant: when it is likely
// ready, and when it should have been, again after an eighth of what it took. Of a
// task that takes twice as long as its like that says nothing more: it is asked by
// its lease.
func (d *Dispatcher) stillWorks(g store.Grant, now time.Time) time.Duration {
	worked := now.Sub(g.GrantedAt)
	again := worked / 8
	if worked >= 2*d.Waiters.Pools.HoldOf(g.Pool, g.Kind) {
		again = max(again, g.LeaseLength/longAgain)
	}
	return decision.Bounded(max(d.usual(g.Pool, g.Kind)-worked, again))
}

// outage records since when a server that reports need has not answered.
type outage struct {
	mu    sync.Mutex
	since time.Time // zero if the server answers
}

// saw records the result of a call that began at began.
func (o *outage) saw(err error, began time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err == nil:
		o.since = time.Time{}
	case o.since.IsZero():
		o.since = began
	}
}

// lasted returns how long the server has not answered. It is 0 if the server answers.
func (o *outage) lasted(now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		return 0
	}
	return now.Sub(o.since)
}
