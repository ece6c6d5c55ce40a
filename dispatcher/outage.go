package dispatcher

import (
	"sync"
	"time"
)

// outage is since when reports get no answer of a server that they need.
type outage struct {
	mu    sync.Mutex
	since time.Time // zero: it answers
}

// saw learns from what an attempt came to that began at a time.
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

// lasted is for how long; 0: it answers.
func (o *outage) lasted(now time.Time) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		return 0
	}
	return now.Sub(o.since)
}

// whenServed is when to ask again for what a server did not confirm: most of them
// answer again within seconds. Devices that find one still away come some time in
// their period, as they would have, and not all of them every few seconds.
func (d *Dispatcher) whenServed() time.Duration {
	now := d.now()
	if max(d.ledgerAway.lasted(now), d.semaphoreAway.lasted(now)) < unavailable {
		return d.spread(unavailable, 0.5)
	}
	return d.spread(d.config.ReportPeriod/2, 1)
}
