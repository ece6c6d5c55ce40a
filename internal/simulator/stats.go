package simulator

import (
	"sync"
	"time"
)

// Stats counts what a fleet has done so far.
type Stats struct {
	Introduced   int64 // devices that have received an answer
	Reports      int64 // reports sent, including copies and garbage
	Replies      int64 // replies received
	Denied       int64 // replies with reason full or limited: a task has no free slot, or a limit refuses it
	Grants       int64 // tasks started
	Redeliveries int64 // grants whose task was running or had its result in the journal; after a reboot, such a grant counts in Grants
	Dropped      int64 // grants not used: too little lease left, too low a token, an earlier boot's report, or the device was working
	Renewals     int64
	Cancels      int64         // tasks stopped because the server asked
	LeasesEnded  int64         // tasks stopped at the end of their lease, including silent ones
	Silent       int64         // tasks whose device became silent
	Overstay     time.Duration // longest time by which a device left after the end of its lease; a busy machine makes devices late
	Reboots      int64
	Working      int64 // devices at work now

	Results   int64 // results written into journals
	Recorded  int64 // Recorded to Rejected count results by the outcome that arrived first
	Duplicate int64
	Late      int64
	Unknown   int64
	Rejected  int64
	Discarded int64 // results dropped after refusals

	LostReplies     int64 // reports whose reply the device drops on purpose
	Refused         int64 // reports refused (400, 401, 403, 413, 422, 429 and their MQTT reasons)
	Errors          int64 // other failures: network, 408, 5xx
	GarbageSent     int64
	GarbageRefused  int64
	GarbageAccepted int64 // malformed reports that were accepted, or answered with 500
	Violations      int64 // replies that break the protocol
	FirstViolation  string
}

// counters holds the Stats of a fleet. A mutex guards them, because all devices add to them.
type counters struct {
	mu sync.Mutex
	Stats
}

func (c *counters) add(counter *int64, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*counter += n
}

func (c *counters) stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Stats
}

func (c *counters) countReply(reason string) {
	c.add(&c.Replies, 1)
	if reason == reasonFull || reason == reasonLimited {
		c.add(&c.Denied, 1)
	}
}

func (c *counters) countOutcome(outcome string) {
	field, known := map[string]*int64{outcomeRecorded: &c.Recorded, outcomeDuplicate: &c.Duplicate, outcomeLate: &c.Late, outcomeUnknown: &c.Unknown}[outcome]
	if !known { // the outcome rejected, or an outcome of a later version, which is final, too
		field = &c.Rejected
	}
	c.add(field, 1)
}

// recordViolation counts a reply to device that violates the protocol. It keeps only the first description.
func (c *counters) recordViolation(device, description string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Violations++
	if c.FirstViolation == "" {
		c.FirstViolation = device + ": " + description
	}
}

func (c *counters) recordOverstay(late time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Overstay = max(c.Overstay, late)
}
