package decision

import (
	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// scope is the set of tasks that an obstacle keeps from a slot.
type scope bool

// The scopes of obstacles.
const (
	blocksAllTasks scope = false // all tasks of the pool or of the batch; callers keep their order
	blocksOneTask  scope = true  // only this task; callers that wait behind it may go first
)

// rule is a row of the table of obstacles.
type rule struct {
	code   Code
	reason devices.Reason // reason that the device is given
	scope  scope

	// This function reports whether the obstacle exists, and until when. For a rule of the
	// device, c is empty.
	applies func(s *Situation, c *store.Candidate) (Obstacle, bool)
	// This function describes the obstacle and its remedy for people.
	explain func(x causeWriter, o Obstacle) Cause
}

// deviceRules returns the rules that apply to every task of a device. The device is given
// the reason of the first obstacle.
func deviceRules() []rule {
	return []rule{
		{CodeBlocked, devices.ReasonBlocked, blocksOneTask, isBlocked, causeWriter.blocked},
		{codeDeclined, devices.ReasonDeclined, blocksOneTask, hasDeclined, causeWriter.reportOnly},
		{codeStopping, devices.ReasonBusy, blocksOneTask, isStopping, causeWriter.reportOnly},
		{CodeBusy, devices.ReasonBusy, blocksOneTask, isBusy, causeWriter.busy},
	}
}

// taskRules returns the rules that apply to one task of an idle device. The device is given
// the reason of the first obstacle.
func taskRules() []rule {
	return []rule{
		{CodePoolPaused, devices.ReasonPaused, blocksAllTasks, isPoolPaused, causeWriter.poolPaused},
		{CodeBatchPaused, devices.ReasonPaused, blocksAllTasks, isBatchPaused, causeWriter.batchPaused},
		{CodeNotBefore, devices.ReasonWindow, blocksAllTasks, isBeforeBatchStart, causeWriter.notBegun},
		{CodeNotBefore, devices.ReasonWindow, blocksOneTask, isBeforeTaskStart, causeWriter.taskNotBegun},
		{CodeBackoff, devices.ReasonWindow, blocksOneTask, isBackingOff, causeWriter.backoff},
		{CodeBatchWindow, devices.ReasonWindow, blocksAllTasks, isBatchWindowClosed, causeWriter.batchWindowClosed},
		{CodeBatchWindow, devices.ReasonWindow, blocksOneTask, exceedsBatchWindow, causeWriter.batchWindowClosed},
		{CodePoolWindow, devices.ReasonWindow, blocksAllTasks, isPoolWindowClosed, causeWriter.poolWindowClosed},
		{CodePoolWindow, devices.ReasonWindow, blocksOneTask, exceedsPoolWindow, causeWriter.poolWindowClosed},
		{CodeStandstill, devices.ReasonUnavailable, blocksAllTasks, isInStandstill, causeWriter.standstill},
		{CodeUnavailable, devices.ReasonUnavailable, blocksAllTasks, isUnreachable, causeWriter.unavailable},
		{CodeUnavailable, devices.ReasonUnavailable, blocksAllTasks, isUnchecked, causeWriter.unavailable},
		{CodeLimited, devices.ReasonLimited, blocksOneTask, isLimited, causeWriter.limited},
		{CodeCallersFull, devices.ReasonCallersFull, blocksAllTasks, areCallersFull, causeWriter.callersFull},
		{CodeFull, devices.ReasonFull, blocksAllTasks, isPoolFull, causeWriter.full},
	}
}

func isBlocked(s *Situation, _ *store.Candidate) (Obstacle, bool) { return Obstacle{}, s.Blocked }

func hasDeclined(s *Situation, _ *store.Candidate) (Obstacle, bool) { return Obstacle{}, !s.Accept }

func isStopping(s *Situation, _ *store.Candidate) (Obstacle, bool) { return Obstacle{}, s.MustStop }

func isBusy(s *Situation, _ *store.Candidate) (Obstacle, bool) {
	if s.HeldGrant == nil || !s.Mentioned && s.HeldGrant.CancelWhy == "" {
		return Obstacle{}, false
	}
	return Obstacle{Until: s.HeldGrant.LeaseUntil}, true
}

func isPoolPaused(_ *Situation, c *store.Candidate) (Obstacle, bool) { return Obstacle{}, c.PoolPaused }

func isBatchPaused(_ *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{}, c.BatchPaused
}

// isBeforeBatchStart is the obstacle of a batch before its start time. Here and below, Until is Shared if
// all devices of a batch or a pool wait for it. It is not Shared if one task waits for it.
func isBeforeBatchStart(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: c.NotBefore, Shared: true}, c.NotBefore.After(s.Now)
}

func isBeforeTaskStart(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: c.RetryAt}, c.RetryAtIsNotBefore && c.RetryAt.After(s.Now)
}

func isBackingOff(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: c.RetryAt}, !c.RetryAtIsNotBefore && c.RetryAt.After(s.Now)
}

func isBatchWindowClosed(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: windowRetryTime(c.Window, c, s.Now), Shared: true}, isClosedNow(c.Window, s.Now)
}

func exceedsBatchWindow(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: windowRetryTime(c.Window, c, s.Now), Shared: true}, isTooShort(c.Window, c, s.Now)
}

func isPoolWindowClosed(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: windowRetryTime(c.PoolWindow, c, s.Now), Shared: true}, isClosedNow(c.PoolWindow, s.Now)
}

func exceedsPoolWindow(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: windowRetryTime(c.PoolWindow, c, s.Now), Shared: true}, isTooShort(c.PoolWindow, c, s.Now)
}

func isInStandstill(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: c.Standstill}, s.Now.Before(c.Standstill)
}

func isUnreachable(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{}, s.UnreachablePools[c.Pool]
}

func isUnchecked(s *Situation, c *store.Candidate) (Obstacle, bool) {
	o, is := s.Obstacles[c.Task]
	return o, is && o.Code == CodeUnavailable
}

func isLimited(s *Situation, c *store.Candidate) (Obstacle, bool) {
	o, is := s.Obstacles[c.Task]
	return o, is && o.Code == CodeLimited
}

func areCallersFull(s *Situation, _ *store.Candidate) (Obstacle, bool) {
	return Obstacle{}, s.Callers != nil && s.Callers.Full()
}

func isPoolFull(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{}, s.FullPools[c.Pool]
}
