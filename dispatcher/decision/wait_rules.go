package decision

import (
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/devices"
)

// Queueing is the effect of a refusal on the device in the queues of its pools.
type Queueing int

// The effects of a refusal on the queues.
const (
	LeavesQueue Queueing = iota // the device could start no task: it leaves the queues
	KeepsTurn                   // the device keeps its turn in each queue; an offer that it does not use goes to another device
	PassedOver                  // the device keeps its turn, but gets no offer until it reports again
)

// WaitRule says how a device waits after a refusal for Reason. It is a row of the table of reasons (waitRules).
type WaitRule struct {
	Reason   devices.Reason
	MayPark  bool     // the report may be parked, because the reason may end while the report waits
	Queueing Queueing // by default LeavesQueue

	fixedDelay time.Duration // time until the next report, before jitter, if delay is nil
	// delay returns the time until the next report. now is the ledger's time. untilTurn is the time after which a device in the queue of a full
	// pool must report again.
	delay func(t Timing, refusal Choice, now time.Time, untilTurn time.Duration) time.Duration
}

// waitRules returns the table of reasons. Reasons that are nearer to a grant come later. If the tasks of a device have different reasons, the
// device is given the reason that comes last. The table is an array, so that a report needs no allocation for it.
func waitRules() [15]WaitRule {
	return [...]WaitRule{
		{Reason: devices.ReasonInvalid, fixedDelay: refusedDelay},
		{Reason: devices.ReasonTooLarge, fixedDelay: refusedDelay},
		{Reason: devices.ReasonForbidden, fixedDelay: forbiddenDelay},
		{Reason: devices.ReasonBusyServer, delay: delayInOutage}, // the replica has too many reports; ReasonBusy concerns the device
		{Reason: devices.ReasonBlocked, fixedDelay: blockedDelay},
		{Reason: devices.ReasonDeclined, Queueing: PassedOver, delay: delayOfIdleDevice},
		{Reason: devices.ReasonBusy, Queueing: PassedOver, delay: delayUntilRefusalEnds},
		{Reason: devices.ReasonNone, MayPark: true, delay: delayOfIdleDevice},
		{Reason: devices.ReasonWrongWire, delay: delayOfIdleDevice},
		{Reason: devices.ReasonWindow, MayPark: true, delay: delayUntilRefusalEnds},
		{Reason: devices.ReasonPaused, MayPark: true, delay: delayOfIdleDevice},
		{Reason: devices.ReasonLimited, MayPark: true, Queueing: KeepsTurn, delay: delayUntilRefusalEnds},
		{Reason: devices.ReasonCallersFull, MayPark: true, delay: delayOfIdleDevice}, // the caller is woken when a slot of callers becomes free
		{Reason: devices.ReasonFull, MayPark: true, Queueing: KeepsTurn, delay: delayUntilTurn},
		{Reason: devices.ReasonUnavailable, Queueing: KeepsTurn, delay: delayInOutage},
	}
}

// WaitRuleFor returns the row of a reason. For an unknown reason it returns the first row.
func WaitRuleFor(reason devices.Reason) WaitRule {
	all := waitRules()
	return all[max(indexOfRuleFor(all[:], reason), 0)]
}

// indexOfRuleFor returns the index of the rule for reason, or a negative number if there is none.
func indexOfRuleFor(rules []WaitRule, reason devices.Reason) int {
	return slices.IndexFunc(rules, func(r WaitRule) bool { return r.Reason == reason })
}

// refusalNearerToGrant returns the refusal that is nearer to a grant, which is the refusal whose reason comes later in waitRules. If both have
// the same reason, it returns the refusal with the earlier known Until.
func refusalNearerToGrant(a, b Choice) Choice {
	all := waitRules()
	ofA, ofB := indexOfRuleFor(all[:], a.reasonForRanking()), indexOfRuleFor(all[:], b.reasonForRanking())
	switch {
	case ofB > ofA:
		return b
	case ofB == ofA && !b.Until.IsZero() && (a.Until.IsZero() || b.Until.Before(a.Until)):
		return b
	}
	return a
}

// reasonForRanking returns the reason by which refusalNearerToGrant ranks a refusal. A standstill after a restore ranks like ReasonNone, behind
// every reason that can pass sooner, because another pool may have a slot long before the standstill ends.
func (c Choice) reasonForRanking() devices.Reason {
	if c.Reason == devices.ReasonUnavailable && !c.Until.IsZero() {
		return devices.ReasonNone
	}
	return c.Reason
}
