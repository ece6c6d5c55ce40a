package decision

import (
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// Code names a cause that keeps a task in its state. Codes are stable: programs
// compare them.
type Code string

// Codes of the obstacles. The tables of rule.go define their order.
const (
	CodeBlocked     Code = "device_blocked"
	codeDeclined    Code = "device_declined" // concerns one report only: no explanation contains it
	codeStopping    Code = "device_stopping" // concerns one report only: no explanation contains it
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

// Obstacle is one fact that keeps a task from its start.
type Obstacle struct {
	Code   Code
	Reason devices.Reason // reason that the device is given
	Until  time.Time      // when the obstacle may end by itself; zero if unknown
	Shared bool           // many devices wait for Until
	Own    bool           // the obstacle keeps only this task, and no other task of its pool, from a slot
	Detail string         // for people; if it is empty, the text of the code applies
	Remedy string         // for people; if it is empty, the remedy of the code applies
	Policy string         // for CodeLimited: name of the policy that refuses
	Allows string         // limit of the policy, for people
	Owner  Subject        // owner of the policy
	Drops  bool           // the task must not be tried again: it ends as suppressed

	says func(x explainer, o Obstacle) Cause
}

// obstaclesOf returns all obstacles between one task and its start. If there is no obstacle,
// this task may be the next task of the device.
func (s Situation) obstaclesOf(c store.Candidate) []Obstacle {
	return append(s.ofDevice(), s.ofTask(c)...)
}

// ofDevice returns the obstacles for every task of the device.
func (s Situation) ofDevice() []Obstacle { return found(rulesOfDevice(), &s, &store.Candidate{}) }

// ofTask returns the obstacles for one task, as if its device were idle.
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

// MayStart reports whether a task has no obstacle, except perhaps an obstacle of its device.
func (s Situation) MayStart(c store.Candidate) bool { return len(s.ofTask(c)) == 0 }

// refusal returns the refusal of a device for the obstacles of a task; there must be at least
// one obstacle. The reason is the reason of the first obstacle. Until is the latest Until of the
// obstacles with this reason, or zero if the Until of any of them is unknown.
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
