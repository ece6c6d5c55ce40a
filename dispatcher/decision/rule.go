package decision

import (
	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// rule is a row of the table of obstacles.
type rule struct {
	code   Code
	reason devices.Reason // what it is to the device

	// stands says whether the obstacle stands, and until when. A rule of the device
	// is asked without a task.
	stands func(s *Situation, c *store.Candidate) (Obstacle, bool)
	// says tells people of it, and what would change it.
	says func(x explainer, o Obstacle) Cause
}

// rulesOfDevice hold for every task of a device. The device is told the first that
// stands.
func rulesOfDevice() []rule {
	return []rule{
		{CodeBlocked, devices.ReasonBlocked, isBlocked, explainer.blocked},
		{codeDeclined, devices.ReasonDeclined, hasDeclined, explainer.unsaid},
		{codeStopping, devices.ReasonBusy, isStopping, explainer.unsaid},
		{CodeBusy, devices.ReasonBusy, isBusy, explainer.busy},
	}
}

// rulesOfTask hold for one task of an idle device. The device is told the first that
// stands.
func rulesOfTask() []rule {
	return []rule{
		{CodePoolPaused, devices.ReasonPaused, poolPaused, explainer.poolPaused},
		{CodeBatchPaused, devices.ReasonPaused, batchPaused, explainer.batchPaused},
		{CodeNotBefore, devices.ReasonWindow, notBegun, explainer.notBegun},
		{CodeNotBefore, devices.ReasonWindow, taskNotBegun, explainer.taskNotBegun},
		{CodeBackoff, devices.ReasonWindow, backsOff, explainer.backsOff},
		{CodeBatchWindow, devices.ReasonWindow, batchShut, explainer.batchShut},
		{CodePoolWindow, devices.ReasonWindow, poolShut, explainer.poolShut},
		{CodeStandstill, devices.ReasonUnavailable, standsStill, explainer.standsStill},
		{CodeUnavailable, devices.ReasonUnavailable, unsure, explainer.unavailable},
		{CodeUnavailable, devices.ReasonUnavailable, unchecked, explainer.unavailable},
		{CodeLimited, devices.ReasonLimited, limited, explainer.limited},
		{CodeCallersFull, devices.ReasonCallersFull, callersFull, explainer.callersFull},
		{CodeFull, devices.ReasonFull, full, explainer.full},
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

// Until something that all devices of a batch or pool wait for is shared; until
// something that one task waits for is not.
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
	return Obstacle{Until: opens(c.Window, c, s.Now), Shared: true}, closed(c.Window, c, s.Now)
}

func poolShut(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: opens(c.PoolWindow, c, s.Now), Shared: true}, closed(c.PoolWindow, c, s.Now)
}

func standsStill(s *Situation, _ *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: s.Standstill}, s.Now.Before(s.Standstill)
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
