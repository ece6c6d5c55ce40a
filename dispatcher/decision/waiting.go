package decision

import (
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/devices"
)

// Queueing is the effect of a refusal on the device in the queues of the pools in which it
// has work.
type Queueing int

// The effects of a refusal on the queues.
const (
	Leaves Queueing = iota // the device could start no task: it leaves the queues
	Keeps                  // the device keeps its turn in each queue; an unused offer goes to another device
	Away                   // as Keeps, and the device is passed over until it reports again
)

// Waiting is a row of the table of reasons: how a device waits after a refusal for Reason.
type Waiting struct {
	Reason   devices.Reason
	Parks    bool // the reason may pass while the report is parked
	Queueing Queueing

	again func(t Timing, c Choice, now time.Time, turn time.Duration) time.Duration
}

// waitings returns the table of reasons, sorted by nearness to a grant. If the tasks of a device have
// different reasons, the device is given the reason of the last row. The table is an array, so that
// a report needs no allocation for it.
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
		{Reason: devices.ReasonCallersFull, Parks: true, again: idle}, // the caller is woken when a slot of callers becomes free
		{Reason: devices.ReasonFull, Parks: true, Queueing: Keeps, again: inTurn},
		{Reason: devices.ReasonUnavailable, Queueing: Keeps, again: served},
	}
}

// WaitingOf returns the row of a reason. For an unknown reason it returns the first row.
func WaitingOf(reason devices.Reason) Waiting {
	all := waitings()
	return all[max(rank(all[:], reason), 0)]
}

func rank(all []Waiting, reason devices.Reason) int {
	return slices.IndexFunc(all, func(r Waiting) bool { return r.Reason == reason })
}

// nearer returns the refusal that is nearer to a grant, because the operator and the device need this
// reason. If both have the same reason, it returns the refusal with the earlier Until; a known time wins
// over an unknown time. A standstill of a pool after a restore hides no other reason: another pool may
// have a slot for the device much sooner.
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

// compared returns the reason by which nearer ranks a refusal. If the reason is unavailable until a known time, the
// cause is a standstill.
func (c Choice) compared() devices.Reason {
	if c.Reason == devices.ReasonUnavailable && !c.Until.IsZero() {
		return devices.ReasonNone
	}
	return c.Reason
}
