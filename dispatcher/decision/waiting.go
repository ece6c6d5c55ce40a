package decision

import (
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/devices"
)

// Queueing is what a refused device does in the queues of the pools that it has
// work in.
type Queueing int

// The ways to be refused, for a queue.
const (
	Leaves Queueing = iota // it could start nothing: it leaves the queues
	Keeps                  // it keeps its turn where it has one; an offer that it did not use goes to others
	Away                   // likewise, and it is passed over until it asks again
)

// Waiting is a row of the table of reasons: how a device waits that is refused for it.
type Waiting struct {
	Reason   devices.Reason
	Parks    bool // it may pass while the device waits for its answer
	Queueing Queueing

	again func(t Timing, c Choice, now time.Time, turn time.Duration) time.Duration
}

// waitings is the table. Of the reasons of several tasks the one that stands last
// is told: it is the nearest to a grant. It is an array, which costs a report no allocation.
func waitings() [14]Waiting {
	return [...]Waiting{
		{Reason: devices.ReasonInvalid, again: refused},
		{Reason: devices.ReasonTooLarge, again: refused},
		{Reason: devices.ReasonForbidden, again: forbidden},
		{Reason: devices.ReasonBusyServer, again: served},
		{Reason: devices.ReasonBlocked, again: blocked},
		{Reason: devices.ReasonDeclined, Queueing: Away, again: idle},
		{Reason: devices.ReasonBusy, Queueing: Away, again: known},
		{Reason: devices.ReasonNone, Parks: true, again: idle},
		{Reason: devices.ReasonWindow, Parks: true, again: known},
		{Reason: devices.ReasonPaused, Parks: true, again: idle},
		{Reason: devices.ReasonLimited, Parks: true, Queueing: Keeps, again: known},
		{Reason: devices.ReasonCallersFull, Parks: true, again: idle}, // it is called when a slot of callers falls free
		{Reason: devices.ReasonFull, Parks: true, Queueing: Keeps, again: inTurn},
		{Reason: devices.ReasonUnavailable, Queueing: Keeps, again: served},
	}
}

// WaitingOf is the row of a reason.
func WaitingOf(reason devices.Reason) Waiting {
	all := waitings()
	return all[max(rank(all[:], reason), 0)]
}

func rank(all []Waiting, reason devices.Reason) int {
	return slices.IndexFunc(all, func(r Waiting) bool { return r.Reason == reason })
}

// nearer keeps the refusal that is nearest to a grant: it is what the operator
// and the device want to know. Of two times the earlier one counts, and a known
// one before an unknown. A pool that stands still after a restore hides no other reason: another pool
// may have a slot for the device much sooner.
func nearer(a, b Choice) Choice {
	all := waitings()
	ofA, ofB := rank(all[:], a.compared()), rank(all[:], b.compared())
	switch {
	case ofB > ofA:
		return b
	case ofB == ofA && !b.Until.IsZero() && (a.Until.IsZero() || b.Until.Before(a.Until)):
		return b
	}
	return a
}

// compared is the reason by which nearer compares a refusal. Only a standstill is unavailable until a known time.
func (c Choice) compared() devices.Reason {
	if c.Reason == devices.ReasonUnavailable && !c.Until.IsZero() {
		return devices.ReasonNone
	}
	return c.Reason
}
