package dispatcher

import (
	"context"
	"sync"
	"time"
)

const (
	crowdRenewed = 20     // parts of a report period after which a crowd is counted again
	crowdServes  = 4      // parts of it for which a count serves
	crowdMost    = 10_000 // devices that are counted
)

// crowds are how many devices wait for a pool, in its line or not, as the ledger
// said a moment ago. Just after a batch was queued most have not asked yet, and
// who asks early would be told too short a time by the line alone.
type crowds struct {
	mu      sync.Mutex
	all     map[string]crowd // by pool
	looking bool             // one count is under way; there is at most one
	next    time.Time        // when to look again, at any pool
}

type crowd struct {
	devices int
	at      time.Time
}

func newCrowds() *crowds { return &crowds{all: make(map[string]crowd)} }

// of is how many wait, as counted since; 0: unknown.
func (c *crowds) of(pool string, since time.Time) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.all[pool]; known.at.After(since) {
		return known.devices
	}
	return 0
}

// begin says whether to count now: not what was counted since.
func (c *crowds) begin(pool string, now, since time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.looking || now.Before(c.next) || c.all[pool].at.After(since) {
		return false
	}
	c.looking = true
	return true
}

// end notes a count: they take at most one part in idleShare of the time.
func (c *crowds) end(pool string, devices int, began, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[pool] = crowd{devices: devices, at: now}
	c.looking, c.next = false, now.Add((idleShare-1)*now.Sub(began))
}

func (c *crowds) remove(pool string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, pool)
}

// countCrowd counts who waits for a full pool, beside the report that was refused.
// A device that has work and was not seen for a period and the jitter of its
// report is away, or sleeps in line. What cannot be counted is unknown.
func (d *Dispatcher) countCrowd(pool string) {
	began, period := d.now(), d.config.ReportPeriod
	if !d.crowds.begin(pool, began, began.Add(-max(period/crowdRenewed, time.Second))) {
		return
	}
	d.errands.start(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, handoffLimit)
		defer cancel()
		devices := 0
		defer func() { d.crowds.end(pool, devices, began, d.now()) }()
		var err error
		if devices, err = d.store.WaitingHere(ctx, pool, period+period/5+seenLate, crowdMost); err != nil {
			d.log.WarnContext(ctx, "who waits is not counted", "pool", pool, "err", err)
		}
	})
}
