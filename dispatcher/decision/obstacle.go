package decision

import (
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// Code names what stands in the way of a task. Codes are stable: programs
// compare them.
type Code string

// The obstacles. The tables of rule.go have their order.
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
	CodeCallersFull Code = "callers_full"
	CodeFull        Code = "pool_full"
)

// Obstacle is one thing that stands between a task and its start.
type Obstacle struct {
	Code   Code
	Reason devices.Reason // what it is to the device
	Until  time.Time      // when it may end by itself; zero: unknown
	Shared bool           // many devices wait for Until
	Own    bool           // it keeps this task alone from a slot, and no other of its pool
	Detail string         // for people, where the code does not say all
	Remedy string         // likewise
	Policy string         // that says no, of CodeLimited
	Allows string         // what it allows, for people
	Owner  Subject        // whose it is
	Drops  bool           // the task is not to be tried again: it ends as suppressed

	says func(x explainer, o Obstacle) Cause
}

// obstaclesOf is all that stands between one task and its start. None: the next
// task of the device may be this one.
func (s Situation) obstaclesOf(c store.Candidate) []Obstacle {
	return append(s.ofDevice(), s.ofTask(c)...)
}

// ofDevice is what stands in the way of every task of the device.
func (s Situation) ofDevice() []Obstacle { return found(rulesOfDevice(), &s, &store.Candidate{}) }

// ofTask is what stands in the way of one task of an idle device.
func (s Situation) ofTask(c store.Candidate) []Obstacle { return found(rulesOfTask(), &s, &c) }

func found(rules []rule, s *Situation, c *store.Candidate) (all []Obstacle) {
	for _, r := range rules {
		if o, stands := r.stands(s, c); stands {
			o.Code, o.Reason, o.Own, o.says = r.code, r.reason, bool(r.scope), r.says
			all = append(all, o)
		}
	}
	return all
}

// MayStart says that nothing but the device itself can stand in the way of a task.
func (s Situation) MayStart(c store.Candidate) bool { return len(s.ofTask(c)) == 0 }

// refusal is what a device is told of the obstacles of a task, of which there
// is one at least: the reason of the first, and when the last of that reason
// ends, unknown if that of one is.
func refusal(of []Obstacle) Choice {
	choice := Choice{Reason: of[0].Reason, Until: of[0].Until, Shared: of[0].Shared, Policy: of[0].Policy}
	choice.Own = slices.ContainsFunc(of, func(o Obstacle) bool { return o.Own })
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
