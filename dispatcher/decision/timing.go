package decision

import (
	"time"

	"github.com/fleetslots/dispatcher/devices"
)

// MinReportDelay is the shortest time after which a device is asked to report again.
const MinReportDelay = time.Second

// These delays are the times until the next report of a device, before jitter.
const (
	blockedDelay     = 10 * time.Minute // for a blocked device
	unavailableDelay = 3 * time.Second  // if a server did not answer: most servers answer again within seconds
	forbiddenDelay   = 10 * time.Minute // if the credential was refused: it does not become valid by itself
	refusedDelay     = 30 * time.Second // if the report was invalid or too large: the next report may be valid
	maxReportDelay   = 24 * time.Hour   // maximum of report_after_ms
)

// Timing computes when a refused device reports again. Jitter spreads the reports of devices that were refused at the same time.
type Timing struct {
	Period time.Duration        // report period of an idle device
	Jitter func() float64       // returns a number in [0,1)
	Outage func() time.Duration // returns how long a required server has not answered; 0 if all servers answer
}

// DelayAfter returns the time after which a refused device should report again. now is the ledger's time. untilTurn is the time after which a
// device in the queue of a full pool must report again. The result is at most the report period plus jitter, except for a device in a queue and
// for a reason with a fixed delay.
func (t Timing) DelayAfter(refusal Choice, now time.Time, untilTurn time.Duration) time.Duration {
	rule := WaitRuleFor(refusal.Reason)
	if rule.delay == nil {
		return t.addJitter(rule.fixedDelay, 0.2)
	}
	return rule.delay(t, refusal, now, untilTurn)
}

// DelayAfterRefusal returns the time until the next report of a device whose whole report was refused with reason.
func (t Timing) DelayAfterRefusal(reason devices.Reason) time.Duration {
	return t.DelayAfter(Choice{Reason: reason}, time.Time{}, 0)
}

// delayOfIdleDevice returns the report period with jitter. Like the other functions whose name begins with delay, it can be the value of
// WaitRule.delay.
func delayOfIdleDevice(timing Timing, _ Choice, _ time.Time, _ time.Duration) time.Duration {
	return timing.addJitter(timing.Period, 0.2)
}

// delayUntilTurn returns untilTurn, the time after which a device in the queue of a full pool must report again.
func delayUntilTurn(_ Timing, _ Choice, _ time.Time, untilTurn time.Duration) time.Duration {
	return ClampDelay(untilTurn)
}

// delayUntilRefusalEnds returns the time until refusal.Until, but at most a report period, and adds jitter. It never subtracts jitter, so that
// the device does not report before refusal.Until. If many devices wait for the same time (refusal.Shared), the jitter is larger.
func delayUntilRefusalEnds(timing Timing, refusal Choice, now time.Time, _ time.Duration) time.Duration {
	wait := timing.Period
	if !refusal.Until.IsZero() {
		wait = min(refusal.Until.Sub(now), timing.Period)
	}
	late := wait / 5
	if refusal.Shared && wait < timing.Period {
		late = timing.Period / 2
	}
	return ClampDelay(wait + time.Duration(timing.Jitter()*float64(late)))
}

// delayInOutage returns the delay of a device that was refused because a server did not answer. It is a few seconds, because most servers
// answer again soon. In a longer outage, the delay is a random time within a report period. If refusal.Until is known (the end of a standstill
// after a restore), the delay is the time until then.
func delayInOutage(timing Timing, refusal Choice, now time.Time, untilTurn time.Duration) time.Duration {
	switch {
	case !refusal.Until.IsZero():
		return delayUntilRefusalEnds(timing, refusal, now, untilTurn)
	case timing.Outage() < unavailableDelay:
		return timing.addJitter(unavailableDelay, 0.5)
	}
	return timing.addJitter(timing.Period/2, 1)
}

// addJitter returns a random duration between delay * (1 - maxShare) and delay * (1 + maxShare).
func (t Timing) addJitter(delay time.Duration, maxShare float64) time.Duration {
	return ClampDelay(time.Duration(float64(delay) * (1 - maxShare + 2*maxShare*t.Jitter())))
}

// ClampDelay limits delay to at least MinReportDelay and at most maxReportDelay.
func ClampDelay(delay time.Duration) time.Duration {
	return min(max(delay, MinReportDelay), maxReportDelay)
}
