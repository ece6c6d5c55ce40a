package decision

import (
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// Code names a cause for the state of a task. Codes never change, because programs compare them.
type Code string

// These codes are for obstacles. The tables in rule.go define the order of the obstacles.
const (
	CodeBlocked     Code = "device_blocked"
	codeDeclined    Code = "device_declined" // concerns one report only: no explanation contains it
	codeStopping    Code = "device_stopping" // concerns one report only: no explanation contains it
	CodeBusy        Code = "device_busy"
	CodeWrongWire   Code = "wrong_wire"
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
	Code          Code
	Reason        devices.Reason // reason that the device is given
	Until         time.Time      // when the obstacle may end by itself; zero if unknown
	Shared        bool           // many devices wait for the same Until
	BlocksOneTask bool           // for the task of a caller: the callers behind it may go first
	Detail        string         // for people; if it is empty, the text of the code applies
	Remedy        string         // for people; if it is empty, the remedy of the code applies
	Policy        string         // for CodeLimited: name of the policy that refuses
	Allows        string         // limit of the policy, for people
	Owner         Subject        // owner of the policy
	DropsTask     bool           // the task must not be tried again: it ends as suppressed

	explain func(x causeWriter, o Obstacle) Cause
}

// obstacles returns all obstacles between task and its start.
func (s Situation) obstacles(task store.Candidate) []Obstacle {
	return append(s.deviceObstacles(), s.taskObstacles(task)...)
}

func (s Situation) deviceObstacles() []Obstacle {
	return findObstacles(deviceRules(), &s, &store.Candidate{})
}

// taskObstacles returns the obstacles for task, as if its device were idle.
func (s Situation) taskObstacles(task store.Candidate) []Obstacle {
	return findObstacles(taskRules(), &s, &task)
}

func findObstacles(rules []rule, situation *Situation, task *store.Candidate) (obstacles []Obstacle) {
	for _, r := range rules {
		if o, applies := r.applies(situation, task); applies {
			o.Code, o.Reason, o.BlocksOneTask, o.explain = r.code, r.reason, bool(r.scope), r.explain
			obstacles = append(obstacles, o)
		}
	}
	return obstacles
}

// MayStart reports whether task has no obstacle, except perhaps an obstacle of its device.
func (s Situation) MayStart(task store.Candidate) bool { return len(s.taskObstacles(task)) == 0 }

// choiceForObstacles returns the refusal of a device whose task has these obstacles, of which there must be at least one. The refusal has the
// reason of the first obstacle, and the latest Until of the obstacles with this reason. If one of them has no Until, the refusal has none.
func choiceForObstacles(obstacles []Obstacle) Choice {
	choice := Choice{Reason: obstacles[0].Reason, Until: obstacles[0].Until, Shared: obstacles[0].Shared, Policy: obstacles[0].Policy}
	choice.BlocksOneTask = slices.ContainsFunc(obstacles, func(o Obstacle) bool { return o.BlocksOneTask })
	for _, o := range obstacles[1:] {
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
