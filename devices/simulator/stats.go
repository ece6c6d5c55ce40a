package simulator

import (
	"sync"
	"sync/atomic"
	"time"
)

// Stats is what a fleet did so far.
type Stats struct {
	Reports      int64 // sent, copies and garbage included
	Replies      int64 // seen
	Denied       int64 // of these: there is a task, but no slot for it, or a limit
	Grants       int64 // started
	Redeliveries int64 // grants of a task that was running or had ended
	Dropped      int64 // grants not used: over, of another boot, or while working
	Renewals     int64
	Cancels      int64         // tasks stopped because the server asked
	LeasesEnded  int64         // tasks stopped at the end of their lease, silent ones included
	Silent       int64         // tasks whose device went silent
	Overstay     time.Duration // the latest that a device had left after its lease; a busy machine makes it late
	Reboots      int64
	Working      int64 // devices at work now

	Results   int64 // written into journals
	Recorded  int64 // and their outcomes, copies included
	Duplicate int64
	Late      int64
	Unknown   int64
	Rejected  int64
	Discarded int64 // results given up after refusals

	LostReplies     int64 // reports whose reply the device loses on purpose
	Refused         int64 // reports refused (400, 413, 422, 401, 403 and their MQTT reasons)
	Errors          int64 // other failures: network, 429, 5xx
	GarbageSent     int64
	GarbageRefused  int64
	GarbageAccepted int64 // malformed reports that were accepted, or answered 500
	Violations      int64 // replies that break the protocol
	FirstViolation  string
}

// counters is Stats while devices count. One is shared by a fleet.
type counters struct {
	introduced                                                       atomic.Int64
	reports, replies, denied                                         atomic.Int64
	grants, redeliveries, dropped, renewals, cancels                 atomic.Int64
	leasesEnded, silent, reboots, working                            atomic.Int64
	results, recorded, duplicate, late, unknown, rejected, discarded atomic.Int64
	lostReplies, refused, errors                                     atomic.Int64
	garbageSent, garbageRefused, garbageAccepted, violations         atomic.Int64
	mu                                                               sync.Mutex
	overstay                                                         time.Duration
	firstViolation                                                   string
}

func (c *counters) replied(reason string) {
	c.replies.Add(1)
	if reason == reasonFull || reason == reasonLimited {
		c.denied.Add(1)
	}
}

func (c *counters) outcome(o string) {
	switch o {
	case outcomeRecorded:
		c.recorded.Add(1)
	case outcomeDuplicate:
		c.duplicate.Add(1)
	case outcomeLate:
		c.late.Add(1)
	case outcomeUnknown:
		c.unknown.Add(1)
	default: // rejected, and what later versions may add: final all the same
		c.rejected.Add(1)
	}
}

func (c *counters) violation(device, what string) {
	c.violations.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.firstViolation == "" {
		c.firstViolation = device + ": " + what
	}
}

// left is told how long after the end of its lease a device had left.
func (c *counters) left(late time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.overstay = max(c.overstay, late)
}

func (c *counters) snapshot() Stats {
	c.mu.Lock()
	first, overstay := c.firstViolation, c.overstay
	c.mu.Unlock()
	return Stats{
		Reports: c.reports.Load(), Replies: c.replies.Load(), Denied: c.denied.Load(), Grants: c.grants.Load(),
		Redeliveries: c.redeliveries.Load(), Dropped: c.dropped.Load(), Renewals: c.renewals.Load(),
		Cancels: c.cancels.Load(), LeasesEnded: c.leasesEnded.Load(), Silent: c.silent.Load(), Overstay: overstay,
		Reboots: c.reboots.Load(), Working: c.working.Load(),
		Results: c.results.Load(), Recorded: c.recorded.Load(), Duplicate: c.duplicate.Load(),
		Late: c.late.Load(), Unknown: c.unknown.Load(), Rejected: c.rejected.Load(), Discarded: c.discarded.Load(),
		LostReplies: c.lostReplies.Load(), Refused: c.refused.Load(), Errors: c.errors.Load(),
		GarbageSent: c.garbageSent.Load(), GarbageRefused: c.garbageRefused.Load(),
		GarbageAccepted: c.garbageAccepted.Load(), Violations: c.violations.Load(), FirstViolation: first,
	}
}
