package dispatcher

import (
	"context"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// Waker tells devices that are pushed to; *mqtt.Client.
type Waker interface {
	// Wake asks a device to report now: a place is kept for it for hold; 0: there
	// is other news. It never blocks, and may be lost.
	Wake(device devices.ID, hold time.Duration)
}

// reachOf is how the device of a report can be told of a place from now on.
func (d *Dispatcher) reachOf(h *handling) store.Reach {
	switch {
	case h.caller.Via == ViaBroker && d.config.Waker != nil:
		return store.ReachPush
	case h.park != nil:
		return store.ReachPark
	}
	return store.ReachNone
}

// wake tells a device that a place is kept for it; began is when this handoff had its turn.
func (d *Dispatcher) wake(ctx context.Context, pool string, o placed, began time.Time) {
	now := d.now()
	d.refusals.forget(o.Device)
	d.config.Waker.Wake(devices.ID(o.Device), o.Left)
	d.claims.sent(pool, o.Device, now)
	if !o.since.IsZero() {
		d.metrics.handedOn(pool, now.Sub(o.since))
		steps := d.stepsOf(ctx, o.since)
		steps.done("called", began)
		steps.done("read", now)
		steps.say(d.config.Logger, pool, "push")
	}
}

const (
	offerPatience = 4       // a place is kept for so many times of what devices took to come lately
	claimWeight   = 0.1     // of the newest claim in the mean
	inVain        = 10      // so many offers that nobody came for: it is not one slow device, many are gone
	hurry         = 6       // then slots are kept for so many times less
	mostClaims    = 100_000 // under way; beyond it all are forgotten: a bound, not a policy
)

// claims learns how long devices take to come for what they were offered, as
// this replica sees it.
type claims struct {
	least, most time.Duration // that a place is kept

	mu    sync.Mutex
	told  map[string]claim // by device
	means map[string]time.Duration
	vain  map[string]vain // offers since the last one that a device came for, by pool
}

// vain are offers that nobody came for so far.
type vain struct {
	offers int
	since  time.Time // the first one
}

// claim is one that is under way.
type claim struct {
	pool string
	at   time.Time
}

func newClaims(least, most time.Duration) *claims {
	return &claims{least: least, most: most, told: make(map[string]claim), means: make(map[string]time.Duration), vain: make(map[string]vain)}
}

func (c *claims) sent(pool, device string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.told) >= mostClaims {
		clear(c.told)
	}
	c.told[device] = claim{pool: pool, at: now}
	v := c.vain[pool]
	if v.offers == 0 {
		v.since = now
	}
	v.offers++
	c.vain[pool] = v
}

// made learns from a device that was granted a place. One that came later than
// any offer lasts did not come for it.
func (c *claims) made(pool, device string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	told, ok := c.told[device]
	delete(c.told, device)
	took := now.Sub(told.at)
	if !ok || told.pool != pool || took > c.most {
		return
	}
	delete(c.vain, pool)
	mean, known := c.means[pool]
	if !known {
		mean = took
	}
	c.means[pool] = mean + time.Duration(claimWeight*float64(took-mean))
}

// offer is how long a slot of the pool is to be kept for a device. When nobody
// came for many offers, a network is down, say, and each of its devices would
// keep a slot idle in turn: then it is kept only as long as those took that came.
func (c *claims) offer(pool string, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	least := c.least
	if v := c.vain[pool]; v.offers >= inVain && now.Sub(v.since) > c.most {
		least /= hurry
	}
	return min(max(offerPatience*c.means[pool], least), c.most)
}
