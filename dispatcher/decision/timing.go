package decision

import (
	"time"

	"github.com/fleetslots/dispatcher/devices"
)

// Soonest is the least time after which a device is asked back.
const Soonest = time.Second

const (
	blockedAgain   = 10 * time.Minute // a blocked device looks again
	unavailable    = 3 * time.Second  // servers come back within seconds
	forbiddenAgain = 10 * time.Minute // a credential does not mend itself
	refusedAgain   = 30 * time.Second // other bytes may go better
	maxAfter       = 24 * time.Hour   // bound of report_after_ms
)

// Timing says when it is worth asking again, jittered so that devices refused
// together do not come back together.
type Timing struct {
	Period time.Duration        // in which an idle device reports
	Jitter func() float64       // in [0,1)
	Away   func() time.Duration // for how long a server that is needed gave no answer; 0: it answers
}

// After says when a refused device is to ask again. It never exceeds the report
// period by more than the jitter, so that new work is found within a period; a
// device that is blocked or forbidden comes later. turn is when the queue of a full
// pool expects the device.
func (t Timing) After(c Choice, now time.Time, turn time.Duration) time.Duration {
	return WaitingOf(c.Reason).again(t, c, now, turn)
}

// AfterRefusal is After for a report that was refused whole.
func (t Timing) AfterRefusal(reason devices.Reason) time.Duration {
	return t.After(Choice{Reason: reason}, time.Time{}, 0)
}

// The times of the table of reasons.
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

// known is not a moment before it can help: the jitter comes on top. Many
// devices that wait for the same time must not all come at once.
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

// served is when to ask again for what a server did not confirm: most of them
// answer again within seconds. Devices that find one still away come some time in
// their period, as they would have, and not all of them every few seconds. After a
// restore it is known when.
func served(t Timing, c Choice, now time.Time, turn time.Duration) time.Duration {
	switch {
	case !c.Until.IsZero():
		return known(t, c, now, turn)
	case t.Away() < unavailable:
		return t.spread(unavailable, 0.5)
	}
	return t.spread(t.Period/2, 1)
}

// spread is wait +- share of it.
func (t Timing) spread(wait time.Duration, share float64) time.Duration {
	return Bounded(time.Duration(float64(wait) * (1 - share + 2*share*t.Jitter())))
}

// Bounded is a time that a device may be given.
func Bounded(wait time.Duration) time.Duration { return min(max(wait, Soonest), maxAfter) }
