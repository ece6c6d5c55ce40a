package decision

import (
	"time"

	"github.com/fleetslots/dispatcher/devices"
)

// MinReportDelay is the shortest time after which a device is asked to report again.
const MinReportDelay = time.Second

const (
	blockedDelay     = 10 * time.Minute // a blocked device reports again
	unavailableDelay = 3 * time.Second  // most servers answer again within seconds
	forbiddenDelay   = 10 * time.Minute // a refused credential does not become valid by itself
	refusedDelay     = 30 * time.Second // the next report may be valid
	maxReportDelay   = 24 * time.Hour   // maximum of report_after_ms
)

// Timing computes when a refused device reports again. It adds jitter, so that devices that were
// refused at the same time do not report again at the same time.
type Timing struct {
	Period time.Duration        // report period of an idle device
	Jitter func() float64       // returns a number in [0,1)
	Outage func() time.Duration // returns how long a required server has not answered; 0 if all servers answer
}

// DelayAfter returns the time after which a refused device reports again. It exceeds the report period
// by at most the jitter, so that the device finds new work within a period. There are two
// exceptions: a blocked or forbidden device reports later, and a device in the queue of a full pool
// reports after untilTurn, the time until the queue expects its report.
func (t Timing) DelayAfter(c Choice, now time.Time, untilTurn time.Duration) time.Duration {
	return WaitRuleFor(c.Reason).delay(t, c, now, untilTurn)
}

// DelayAfterRefusal returns the time until the next report of a device whose whole report was refused with reason.
func (t Timing) DelayAfterRefusal(reason devices.Reason) time.Duration {
	return t.DelayAfter(Choice{Reason: reason}, time.Time{}, 0)
}

// afterIdle and the functions below compute the times for the table in waitRules.
func afterIdle(t Timing, _ Choice, _ time.Time, _ time.Duration) time.Duration {
	return t.spread(t.Period, 0.2)
}

func afterRefused(t Timing, _ Choice, _ time.Time, _ time.Duration) time.Duration {
	return t.spread(refusedDelay, 0.2)
}

func afterForbidden(t Timing, _ Choice, _ time.Time, _ time.Duration) time.Duration {
	return t.spread(forbiddenDelay, 0.2)
}

func afterBlocked(t Timing, _ Choice, _ time.Time, _ time.Duration) time.Duration {
	return t.spread(blockedDelay, 0.2)
}

func afterTurn(_ Timing, _ Choice, _ time.Time, untilTurn time.Duration) time.Duration {
	return ClampDelay(untilTurn)
}

// afterUntil returns the time until c.Until, at most a report period, plus jitter. The jitter is
// not negative, so the device does not report before c.Until. Devices that wait for the same time
// must not report all at once.
func afterUntil(t Timing, c Choice, now time.Time, _ time.Duration) time.Duration {
	wait := t.Period
	if !c.Until.IsZero() {
		wait = min(c.Until.Sub(now), t.Period)
	}
	late := wait / 5
	if c.Shared && wait < t.Period {
		late = t.Period / 2
	}
	return ClampDelay(wait + time.Duration(t.Jitter()*float64(late)))
}

// afterOutage returns the time after which a device reports again if a server did not confirm
// something. Most servers answer again within seconds. If the outage lasts longer, devices report
// at a random time within their period, as idle devices do, and not all of them every few seconds.
// After a restore, c.Until is known.
func afterOutage(t Timing, c Choice, now time.Time, untilTurn time.Duration) time.Duration {
	switch {
	case !c.Until.IsZero():
		return afterUntil(t, c, now, untilTurn)
	case t.Outage() < unavailableDelay:
		return t.spread(unavailableDelay, 0.5)
	}
	return t.spread(t.Period/2, 1)
}

// spread returns a random duration between wait * (1 - share) and wait * (1 + share).
func (t Timing) spread(wait time.Duration, share float64) time.Duration {
	return ClampDelay(time.Duration(float64(wait) * (1 - share + 2*share*t.Jitter())))
}

// ClampDelay limits wait to a time that a device may be given.
func ClampDelay(wait time.Duration) time.Duration {
	return min(max(wait, MinReportDelay), maxReportDelay)
}
