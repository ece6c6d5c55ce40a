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

// outages are those of the servers that reports need.
type outages struct {
	ledger, semaphore outage
}
