package decision

import (
	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// scope is the set of tasks that an obstacle keeps from a slot.
type scope bool

// The scopes of obstacles.
const (
	ofAll scope = false // all tasks of the pool or of the batch; callers keep their order
	ofOne scope = true  // only this task; callers that wait behind it may go first
)

// rule is a row of the table of obstacles.
type rule struct {
	code   Code
	reason devices.Reason // reason that the device is given
	scope  scope

	// This function reports whether the obstacle exists, and until when. For a rule of the
	// device, c is empty.
	stands func(s *Situation, c *store.Candidate) (Obstacle, bool)
	// This function describes the obstacle and its remedy for people.
	says func(x explainer, o Obstacle) Cause
}

// rulesOfDevice returns the rules that apply to every task of a device. The device is given
// the reason of the first obstacle.
func rulesOfDevice() []rule {
	return []rule{
		{CodeBlocked, devices.ReasonBlocked, ofOne, isBlocked, explainer.blocked},
		{codeDeclined, devices.ReasonDeclined, ofOne, hasDeclined, explainer.unsaid},
		{codeStopping, devices.ReasonBusy, ofOne, isStopping, explainer.unsaid},
		{CodeBusy, devices.ReasonBusy, ofOne, isBusy, explainer.busy},
	}
}

// rulesOfTask returns the rules that apply to one task of an idle device. The device is given
// the reason of the first obstacle.
func rulesOfTask() []rule {
	return []rule{
		{CodePoolPaused, devices.ReasonPaused, ofAll, poolPaused, explainer.poolPaused},
		{CodeBatchPaused, devices.ReasonPaused, ofAll, batchPaused, explainer.batchPaused},
		{CodeNotBefore, devices.ReasonWindow, ofAll, notBegun, explainer.notBegun},
		{CodeNotBefore, devices.ReasonWindow, ofOne, taskNotBegun, explainer.taskNotBegun},
		{CodeBackoff, devices.ReasonWindow, ofOne, backsOff, explainer.backsOff},
		{CodeBatchWindow, devices.ReasonWindow, ofAll, batchShut, explainer.batchShut},
		{CodeBatchWindow, devices.ReasonWindow, ofOne, doesNotFitBatch, explainer.batchShut},
		{CodePoolWindow, devices.ReasonWindow, ofAll, poolShut, explainer.poolShut},
		{CodePoolWindow, devices.ReasonWindow, ofOne, doesNotFitPool, explainer.poolShut},
		{CodeStandstill, devices.ReasonUnavailable, ofAll, standsStill, explainer.standsStill},
		{CodeUnavailable, devices.ReasonUnavailable, ofAll, unsure, explainer.unavailable},
		{CodeUnavailable, devices.ReasonUnavailable, ofAll, unchecked, explainer.unavailable},
		{CodeLimited, devices.ReasonLimited, ofOne, limited, explainer.limited},
		{CodeCallersFull, devices.ReasonCallersFull, ofAll, callersFull, explainer.callersFull},
		{CodeFull, devices.ReasonFull, ofAll, full, explainer.full},
	}
}

func isBlocked(s *Situation, _ *store.Candidate) (Obstacle, bool) { return Obstacle{}, s.Blocked }

func hasDeclined(s *Situation, _ *store.Candidate) (Obstacle, bool) { return Obstacle{}, !s.Accept }

func isStopping(s *Situation, _ *store.Candidate) (Obstacle, bool) { return Obstacle{}, s.Stopping }

func isBusy(s *Situation, _ *store.Candidate) (Obstacle, bool) {
	if s.Holding == nil || !s.Mentioned && s.Holding.CancelWhy == "" {
		return Obstacle{}, false
	}
	return Obstacle{Until: s.Holding.LeaseUntil}, true
}

func poolPaused(_ *Situation, c *store.Candidate) (Obstacle, bool) { return Obstacle{}, c.PoolPaused }

func batchPaused(_ *Situation, c *store.Candidate) (Obstacle, bool) { return Obstacle{}, c.BatchPaused }

// notBegun is the obstacle of a batch before its start time. Here and below, Until is Shared if
// all devices of a batch or a pool wait for it. It is not Shared if one task waits for it.
func notBegun(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: c.NotBefore, Shared: true}, c.NotBefore.After(s.Now)
}

func taskNotBegun(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: c.RetryAt}, c.NotBegun && c.RetryAt.After(s.Now)
}

func backsOff(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: c.RetryAt}, !c.NotBegun && c.RetryAt.After(s.Now)
}

func batchShut(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: opens(c.Window, c, s.Now), Shared: true}, shut(c.Window, s.Now)
}

func doesNotFitBatch(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: opens(c.Window, c, s.Now), Shared: true}, tooShort(c.Window, c, s.Now)
}

func poolShut(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: opens(c.PoolWindow, c, s.Now), Shared: true}, shut(c.PoolWindow, s.Now)
}

func doesNotFitPool(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: opens(c.PoolWindow, c, s.Now), Shared: true}, tooShort(c.PoolWindow, c, s.Now)
}

func standsStill(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: c.Standstill}, s.Now.Before(c.Standstill)
}

func unsure(s *Situation, c *store.Candidate) (Obstacle, bool) { return Obstacle{}, s.Unsure[c.Pool] }

func unchecked(s *Situation, c *store.Candidate) (Obstacle, bool) {
	o, is := s.Limited[c.Task]
	return o, is && o.Code == CodeUnavailable
}

func limited(s *Situation, c *store.Candidate) (Obstacle, bool) {
	o, is := s.Limited[c.Task]
	return o, is && o.Code == CodeLimited
}

func callersFull(s *Situation, _ *store.Candidate) (Obstacle, bool) {
	return Obstacle{}, s.Callers != nil && s.Callers.Full()
}

func full(s *Situation, c *store.Candidate) (Obstacle, bool) { return Obstacle{}, s.Full[c.Pool] }
