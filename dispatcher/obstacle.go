package dispatcher

import (
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// Code names what stands in the way of a task. Codes are stable: programs
// compare them.
type Code string

// The obstacles, in the order in which they are looked at: the first of a task
// is what its device is told.
const (
	CodeBlocked     Code = "device_blocked"
	codeDeclined    Code = "device_declined" // of one report: nobody else is told
	codeStopping    Code = "device_stopping" // likewise
	CodeBusy        Code = "device_busy"
	CodePoolPaused  Code = "pool_paused"
	CodeBatchPaused Code = "batch_paused"
	CodeNotBefore   Code = "not_before"
	CodeBackoff     Code = "backoff"
	CodeBatchWindow Code = "batch_window"
	CodePoolWindow  Code = "pool_window"
	CodeStandstill  Code = "standstill"
	CodeUnavailable Code = "unavailable"
	CodeLimited     Code = "limited"
	CodeFull        Code = "pool_full"
)

// Obstacle is one thing that stands between a task and its start.
type Obstacle struct {
	Code   Code
	Reason devices.Reason // what it is to the device
	Until  time.Time      // when it may end by itself; zero: unknown
	Shared bool           // many devices wait for Until
	Detail string         // for people, where the code does not say all
	Remedy string         // likewise
	Policy string         // that says no, of CodeLimited
}

// obstaclesOf judges one task: all that stands between it and its start. None:
// nothing does, and the next task of the device may be this one.
func (s Situation) obstaclesOf(c store.Candidate) []Obstacle {
	return append(s.ofDevice(), s.ofTask(c)...)
}

// ofDevice is what stands in the way of every task of the device.
func (s Situation) ofDevice() (found []Obstacle) {
	if s.Blocked {
		found = append(found, Obstacle{Code: CodeBlocked, Reason: devices.ReasonBlocked})
	}
	if !s.Accept {
		found = append(found, Obstacle{Code: codeDeclined, Reason: devices.ReasonDeclined})
	}
	if s.Stopping {
		found = append(found, Obstacle{Code: codeStopping, Reason: devices.ReasonBusy})
	}
	if s.Holding != nil && (s.Mentioned || s.Holding.CancelWhy != "") {
		found = append(found, Obstacle{Code: CodeBusy, Reason: devices.ReasonBusy, Until: s.Holding.LeaseUntil})
	}
	return found
}

// ofTask is what stands in the way of one task of an idle device.
func (s Situation) ofTask(c store.Candidate) (found []Obstacle) {
	if c.PoolPaused {
		found = append(found, Obstacle{Code: CodePoolPaused, Reason: devices.ReasonPaused})
	}
	if c.BatchPaused {
		found = append(found, Obstacle{Code: CodeBatchPaused, Reason: devices.ReasonPaused})
	}
	found = append(found, s.notYet(c)...)
	if s.Now.Before(s.Standstill) {
		found = append(found, Obstacle{Code: CodeStandstill, Reason: devices.ReasonUnavailable, Until: s.Standstill})
	}
	if s.Unsure[c.Pool] {
		found = append(found, Obstacle{Code: CodeUnavailable, Reason: devices.ReasonUnavailable})
	}
	if o, is := s.Limited[c.Task]; is {
		found = append(found, o)
	}
	if s.Full[c.Pool] {
		found = append(found, Obstacle{Code: CodeFull, Reason: devices.ReasonFull})
	}
	return found
}

// notYet is why the time of a task has not come: its batch has not begun, it
// waits to be tried again, or a window is closed. What all devices of a batch
// or pool wait for is shared, what one task waits for is not.
func (s Situation) notYet(c store.Candidate) (found []Obstacle) {
	if c.NotBefore.After(s.Now) {
		found = append(found, Obstacle{Code: CodeNotBefore, Reason: devices.ReasonWindow, Until: c.NotBefore, Shared: true})
	}
	if c.RetryAt.After(s.Now) {
		found = append(found, Obstacle{Code: CodeBackoff, Reason: devices.ReasonWindow, Until: c.RetryAt})
	}
	if closed(c.Window, c, s.Now) {
		found = append(found, Obstacle{Code: CodeBatchWindow, Reason: devices.ReasonWindow, Until: opens(c.Window, c, s.Now), Shared: true})
	}
	if closed(c.PoolWindow, c, s.Now) {
		found = append(found, Obstacle{Code: CodePoolWindow, Reason: devices.ReasonWindow, Until: opens(c.PoolWindow, c, s.Now), Shared: true})
	}
	return found
}

// closed says whether nothing may start in a window now. The ledger's claims
// say the same.
func closed(o store.Opening, c store.Candidate, now time.Time) bool {
	return !o.Until.IsZero() && (o.From.After(now) || !o.Until.After(now.Add(needed(c))))
}

// needed is what must be left of a window when the task starts.
func needed(c store.Candidate) time.Duration {
	if c.FinishInside {
		return c.Lease
	}
	return 0
}

// opens is when a closed window is worth asking for again; zero: unknown.
func opens(o store.Opening, c store.Candidate, now time.Time) time.Time {
	switch {
	case o.From.After(now) && o.Until.Sub(o.From) > needed(c):
		return o.From
	case o.Until.After(now): // too little is left; the next is known when this one is over
		return o.Until
	}
	return time.Time{} // over: when it opens again is being computed
}

// refusal is what a device is told of the obstacles of a task, of which there
// is one at least: the reason of the first, and when the last of that reason
// ends, unknown if that of one is.
func refusal(of []Obstacle) Choice {
	choice := Choice{Reason: of[0].Reason, Until: of[0].Until, Shared: of[0].Shared, Policy: of[0].Policy}
	for _, o := range of[1:] {
		switch {
		case o.Reason != choice.Reason:
		case o.Until.IsZero() || choice.Until.IsZero():
			choice.Until = time.Time{}
		case !o.Until.Before(choice.Until):
			choice.Until, choice.Shared = o.Until, o.Shared
		}
	}
	choice.Shared = choice.Shared && !choice.Until.IsZero()
	return choice
}
