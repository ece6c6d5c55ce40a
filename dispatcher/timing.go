package dispatcher

import (
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/store"
)

const longRunDivisor = 30 // if a task runs for more than twice the usual hold time, its device reports after LeaseLength/longRunDivisor at the earliest

func (d *Dispatcher) timing() decision.Timing {
	return decision.Timing{Period: d.config.ReportPeriod, Jitter: d.config.Jitter, Outage: func() time.Duration {
		now := d.config.Now()
		return max(d.outages.ledger.outageDuration(now), d.outages.semaphore.outageDuration(now))
	}}
}

// DelayAfterRefusal returns the time, with jitter, after which a device reports again if its whole report was refused for this reason.
func (d *Dispatcher) DelayAfterRefusal(reason devices.Reason) time.Duration {
	return d.timing().DelayAfterRefusal(reason)
}

// delayAfterGrant returns the time after which a device with a new grant reports. It is the estimated time until the result is ready, but at
// most lease/2, when the lease must be renewed. The estimate is below the recent hold time. Some devices send a result only when they were asked
// to report. If the estimate were the hold time, the hold time of such devices could never fall.
func (d *Dispatcher) delayAfterGrant(pool, taskKind string, lease time.Duration) time.Duration {
	return min(decision.ClampDelay(d.expectedHoldTime(pool, taskKind)), lease/2)
}

func (d *Dispatcher) expectedHoldTime(pool, taskKind string) time.Duration {
	return time.Duration(float64(d.Waiters.Pools.UsualHoldTimeOfKind(pool, taskKind)) * (0.8 + 0.1*d.config.Jitter()))
}

// delayWhileRunning returns the time after which a device that works on grant reports again. It is the estimated time until the task is
// finished, but at least an eighth of the time for which the task has run. A task that has run for twice the usual hold time also waits at
// least LeaseLength/longRunDivisor. now is the ledger's time.
func (d *Dispatcher) delayWhileRunning(grant store.Grant, now time.Time) time.Duration {
	worked := now.Sub(grant.GrantedAt)
	again := worked / 8
	if worked >= 2*d.Waiters.Pools.UsualHoldTimeOfKind(grant.Pool, grant.Kind) {
		again = max(again, grant.LeaseLength/longRunDivisor)
	}
	return decision.ClampDelay(max(d.expectedHoldTime(grant.Pool, grant.Kind)-worked, again))
}

// outage records the time at which the ledger or the semaphore stopped answering.
type outage struct {
	mu    sync.Mutex
	since time.Time // zero if the server answers
}

// recordCall records the outcome of a call. began is the time at which the call began, and callErr is its error. If callErr is nil, the outage
// has ended.
func (o *outage) recordCall(callErr error, began time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case callErr == nil:
		o.since = time.Time{}
	case o.since.IsZero():
		o.since = began
	}
}

func (o *outage) outageDuration(now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		return 0
	}
	return now.Sub(o.since)
}
