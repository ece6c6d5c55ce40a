package dispatcher

import (
	"cmp"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

const (
	soonest      = time.Second      // no device is asked back sooner
	blockedAgain = 10 * time.Minute // a blocked device looks again
	unavailable  = 3 * time.Second  // servers come back within seconds
	forbidden    = 10 * time.Minute // a credential does not mend itself
	refused      = 30 * time.Second // other bytes may go better
	maxAfter     = 24 * time.Hour   // bound of report_after_ms

	longAgain = 30 // a task that takes far longer than usual is asked again after this part of its lease
)

// reportAfter says when it is worth asking again, jittered so that devices
// refused together do not come back together. It never exceeds the report
// period by more than the jitter, so that new work is found within a period.
// turn is what the line of a full pool says: that is when it keeps a place.
func (d *Dispatcher) reportAfter(choice Choice, now time.Time, turn time.Duration) time.Duration {
	period := d.config.ReportPeriod
	switch choice.Reason {
	case devices.ReasonFull:
		return bounded(turn)
	case devices.ReasonWindow, devices.ReasonBusy, devices.ReasonLimited:
		return d.notBefore(choice.Until, now, choice.Shared)
	case devices.ReasonUnavailable:
		if !choice.Until.IsZero() { // after a restore it is known when
			return d.notBefore(choice.Until, now, choice.Shared)
		}
		return d.whenServed()
	case devices.ReasonBlocked:
		return d.spread(blockedAgain, 0.2)
	}
	return d.spread(period, 0.2)
}

// pace is what the line of a pool goes by when it tells a device to come again.
func (d *Dispatcher) pace(pool string) slots.Pace {
	return slots.Pace{Hold: d.holds.mean(pool), Soonest: soonest, Period: d.config.ReportPeriod, Offer: d.config.Offer}
}

// notBefore is not a moment before it can help: the jitter comes on top. What
// many devices wait for, they must not all come for at once.
func (d *Dispatcher) notBefore(until, now time.Time, shared bool) time.Duration {
	period := d.config.ReportPeriod
	wait := period
	if !until.IsZero() {
		wait = min(until.Sub(now), period)
	}
	late := wait / 5
	if shared && wait < period {
		late = period / 2
	}
	return bounded(wait + time.Duration(d.jitter()*float64(late)))
}

// AfterRefusal says when a device is to come back whose report was refused
// whole, jittered. The reason is one of the errors of MQTT.
func (d *Dispatcher) AfterRefusal(reason devices.Reason) time.Duration {
	switch reason {
	case devices.ReasonForbidden:
		return d.spread(forbidden, 0.2)
	case devices.ReasonUnavailable, devices.ReasonBusyServer:
		return d.whenServed()
	}
	return d.spread(refused, 0.2)
}

// whenReady is when the result of a grant is likely there, by how long tasks of
// its kind were held lately, at the latest at half of the lease, when it must be
// renewed. It is somewhat less than that: of a device that reports only when told
// to, nothing sooner would ever be seen, and the time could only grow.
func (d *Dispatcher) whenReady(pool, kind string, lease time.Duration) time.Duration {
	return min(bounded(d.usual(pool, kind)), lease/2)
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
	return bounded(max(d.usual(g.Pool, g.Kind)-worked, again))
}

// spread is wait +- share of it.
func (d *Dispatcher) spread(wait time.Duration, share float64) time.Duration {
	return bounded(time.Duration(float64(wait) * (1 - share + 2*share*d.jitter())))
}

func bounded(wait time.Duration) time.Duration {
	return min(max(wait, soonest), maxAfter)
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
