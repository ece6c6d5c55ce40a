package decision

import (
	"time"

	"github.com/fleetslots/dispatcher/devices"
)

// MinReportDelay is the shortest time after which a device is asked to report again.
const MinReportDelay = time.Second

// The delays until the next report of a device, before jitter.
const (
	blockedDelay     = 10 * time.Minute // for a blocked device
	unavailableDelay = 3 * time.Second  // if a server did not answer: most servers answer again within seconds
	forbiddenDelay   = 10 * time.Minute // if the credential was refused: it does not become valid by itself
	refusedDelay     = 30 * time.Second // if the report was invalid or too large: the next report may be valid
	maxReportDelay   = 24 * time.Hour   // maximum of report_after_ms
)

// Timing computes when a refused device reports again. It adds jitter, so that devices that were
// refused at the same time do not report again at the same time.
type Timing struct {
	Period time.Duration        // report period of an idle device
	Jitter func() float64       // returns a number in [0,1)
	Outage func() time.Duration // returns how long a required server has not answered; 0 if all servers answer
}

// DelayAfter returns the time after which a device should report again if its report was answered with refusal. now is the time of the
// ledger. untilTurn is the time until the queue of a full pool expects the device's report. The result exceeds the report period by at most
// the jitter, so that the device finds new work within a period. There are two exceptions: a blocked or forbidden device reports later, and
// a device in the queue of a full pool reports after untilTurn.
func (t Timing) DelayAfter(refusal Choice, now time.Time, untilTurn time.Duration) time.Duration {
	return WaitRuleFor(refusal.Reason).delay(t, refusal, now, untilTurn)
}

// DelayAfterRefusal returns the time until the next report of a device whose whole report was refused with reason.
func (t Timing) DelayAfterRefusal(reason devices.Reason) time.Duration {
	return t.DelayAfter(Choice{Reason: reason}, time.Time{}, 0)
}

// afterIdle and the functions below have the type of WaitRule.delay: each returns the time until the next report of a device after a
// refusal. Their parameters are the Timing, the refusal, the ledger's time and untilTurn. afterIdle returns the report period with jitter.
func afterIdle(t Timing, _ Choice, _ time.Time, _ time.Duration) time.Duration {
	return t.spread(t.Period, 0.2)
}

// afterRefused returns the time after a report that was refused as invalid or too large.
func afterRefused(t Timing, _ Choice, _ time.Time, _ time.Duration) time.Duration {
	return t.spread(refusedDelay, 0.2)
}

// afterForbidden returns the time after a report whose sender may not act for the device.
func afterForbidden(t Timing, _ Choice, _ time.Time, _ time.Duration) time.Duration {
	return t.spread(forbiddenDelay, 0.2)
}

// afterBlocked returns the time after a report of a blocked device.
func afterBlocked(t Timing, _ Choice, _ time.Time, _ time.Duration) time.Duration {
	return t.spread(blockedDelay, 0.2)
}

// afterTurn returns the time after a report that found a full pool: untilTurn, the time until the queue expects the device.
func afterTurn(_ Timing, _ Choice, _ time.Time, untilTurn time.Duration) time.Duration {
	return ClampDelay(untilTurn)
}

// afterUntil returns the time until refusal.Until, at most a report period, plus jitter. The jitter is not negative, so the device does not
// report before refusal.Until. If many devices wait for the same time (refusal.Shared), the jitter is larger, so that they do not report
// all at once.
func afterUntil(t Timing, refusal Choice, now time.Time, _ time.Duration) time.Duration {
	wait := t.Period
	if !refusal.Until.IsZero() {
		wait = min(refusal.Until.Sub(now), t.Period)
	}
	late := wait / 5
	if refusal.Shared && wait < t.Period {
		late = t.Period / 2
	}
	return ClampDelay(wait + time.Duration(t.Jitter()*float64(late)))
}

// afterOutage returns the time after which a device reports again if a server did not confirm something. Most servers answer again within
// seconds. If the outage lasts longer, devices report at a random time within their period, as idle devices do, because otherwise all of
// them would report every few seconds. During a standstill after a restore, refusal.Until is the end of the standstill.
func afterOutage(t Timing, refusal Choice, now time.Time, untilTurn time.Duration) time.Duration {
	switch {
	case !refusal.Until.IsZero():
		return afterUntil(t, refusal, now, untilTurn)
	case t.Outage() < unavailableDelay:
		return t.spread(unavailableDelay, 0.5)
	}
	return t.spread(t.Period/2, 1)
}

// spread returns a random duration between delay * (1 - share) and delay * (1 + share).
func (t Timing) spread(delay time.Duration, share float64) time.Duration {
	return ClampDelay(time.Duration(float64(delay) * (1 - share + 2*share*t.Jitter())))
}

// ClampDelay returns delay, but at least MinReportDelay and at most maxReportDelay.
func ClampDelay(delay time.Duration) time.Duration {
	return min(max(delay, MinReportDelay), maxReportDelay)
}
