package simulator

import (
	"sync"
	"time"
)

// Stats is what a fleet did so far.
type Stats struct {
	Introduced   int64 // devices that have had an answer
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

// counters are Stats while devices work. One is shared by a fleet.
type counters struct {
	mu sync.Mutex
	Stats
}

// add counts in one of the fields of Stats.
func (c *counters) add(field *int64, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*field += n
}

func (c *counters) stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Stats
}

func (c *counters) replied(reason string) {
	c.add(&c.Replies, 1)
	if reason == reasonFull || reason == reasonLimited {
		c.add(&c.Denied, 1)
	}
}

func (c *counters) outcome(o string) {
	switch o {
	case outcomeRecorded:
		c.add(&c.Recorded, 1)
	case outcomeDuplicate:
		c.add(&c.Duplicate, 1)
	case outcomeLate:
		c.add(&c.Late, 1)
	case outcomeUnknown:
		c.add(&c.Unknown, 1)
	default: // rejected, and what later versions may add: final all the same
		c.add(&c.Rejected, 1)
	}
}

func (c *counters) violation(device, what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Violations++
	if c.FirstViolation == "" {
		c.FirstViolation = device + ": " + what
	}
}

// left is told how long after the end of its lease a device had left.
func (c *counters) left(late time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Overstay = max(c.Overstay, late)
}
