package decision

import (
	"time"

	"github.com/fleetslots/dispatcher/devices"
)

// Soonest is the shortest time after which a device is asked to report again.
const Soonest = time.Second

const (
	blockedAgain   = 10 * time.Minute // a blocked device reports again
	unavailable    = 3 * time.Second  // most servers answer again within seconds
	forbiddenAgain = 10 * time.Minute // a refused credential does not become valid by itself
	refusedAgain   = 30 * time.Second // the next report may be valid
	maxAfter       = 24 * time.Hour   // maximum of report_after_ms
)

// Timing computes when a refused device reports again. It adds jitter, so that devices that were
// refused at the same time do not report again at the same time.
type Timing struct {
	Period time.Duration        // report period of an idle device
	Jitter func() float64       // returns a number in [0,1)
	Away   func() time.Duration // returns how long a required server has not answered; 0 if all servers answer
}

// After returns the time after which a refused device reports again. It exceeds the report period
// by at most the jitter, so that the device finds new work within a period. There are two
// exceptions: a blocked or forbidden device reports later, and a device in the queue of a full pool
// reports after turn.
func (t Timing) After(c Choice, now time.Time, turn time.Duration) time.Duration {
	return WaitingOf(c.Reason).again(t, c, now, turn)
}

// AfterRefusal returns the time until the next report of a device whose whole report was refused with reason.
func (t Timing) AfterRefusal(reason devices.Reason) time.Duration {
	return t.After(Choice{Reason: reason}, time.Time{}, 0)
}

// idle and the functions below compute the times for the table waitings.
func idle(t Timing, _ Choice, _ time.Time, _ time.Duration) time.Duration {
	return t.spread(t.Period, 0.2)
}

func refused(t Timing, _ Choice, _ time.Time, _ time.Duration) time.Duration {
	return t.spread(refusedAgain, 0.2)
}

func forbidden(t Timing, _ Choice, _ time.Time, _ time.Duration) time.Duration {
	return t.spread(forbiddenAgain, 0.2)
}

func blocked(t Timing, _ Choice, _ time.Time, _ time.Duration) time.Duration {
	return t.spread(blockedAgain, 0.2)
}

func inTurn(_ Timing, _ Choice, _ time.Time, turn time.Duration) time.Duration { return Bounded(turn) }

// known returns a time that is not before c.Until, except if c.Until is more than a report period
// away: jitter is only added. Devices that wait for the same time must not report all at once.
func known(t Timing, c Choice, now time.Time, _ time.Duration) time.Duration {
	wait := t.Period
	if !c.Until.IsZero() {
		wait = min(c.Until.Sub(now), t.Period)
	}
	late := wait / 5
	if c.Shared && wait < t.Period {
		late = t.Period / 2
	}
	return Bounded(wait + time.Duration(t.Jitter()*float64(late)))
}

// served returns the time after which a device reports again if a server did not confirm
// something. Most servers answer again within seconds. If the outage lasts longer, devices report
// at a random time within their period, as idle devices do, and not all of them every few seconds.
// After a restore, c.Until is known.
func served(t Timing, c Choice, now time.Time, turn time.Duration) time.Duration {
	switch {
	case !c.Until.IsZero():
		return known(t, c, now, turn)
	case t.Away() < unavailable:
		return t.spread(unavailable, 0.5)
	}
	return t.spread(t.Period/2, 1)
}

// spread returns a random time between wait * (1 - share) and wait * (1 + share).
func (t Timing) spread(wait time.Duration, share float64) time.Duration {
	return Bounded(time.Duration(float64(wait) * (1 - share + 2*share*t.Jitter())))
}

// Bounded limits wait to a time that a device may be given.
func Bounded(wait time.Duration) time.Duration { return min(max(wait, Soonest), maxAfter) }
