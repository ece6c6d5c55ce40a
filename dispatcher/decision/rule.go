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
		{CodeBlocked, devices.ReasonBlocked, blocksOneTask, blockedObstacle, causeWriter.blocked},
		{codeDeclined, devices.ReasonDeclined, blocksOneTask, declinedObstacle, causeWriter.reportOnly},
		{codeStopping, devices.ReasonBusy, blocksOneTask, stoppingObstacle, causeWriter.reportOnly},
		{CodeBusy, devices.ReasonBusy, blocksOneTask, busyObstacle, causeWriter.busy},
	}
}

// taskRules returns the rules that apply to one task of an idle device. The device is given
// the reason of the first obstacle.
func taskRules() []rule {
	return []rule{
		{CodePoolPaused, devices.ReasonPaused, blocksAllTasks, poolPausedObstacle, causeWriter.poolPaused},
		{CodeBatchPaused, devices.ReasonPaused, blocksAllTasks, batchPausedObstacle, causeWriter.batchPaused},
		{CodeNotBefore, devices.ReasonWindow, blocksAllTasks, batchStartObstacle, causeWriter.notBegun},
		{CodeNotBefore, devices.ReasonWindow, blocksOneTask, taskStartObstacle, causeWriter.taskNotBegun},
		{CodeBackoff, devices.ReasonWindow, blocksOneTask, backoffObstacle, causeWriter.backoff},
		{CodeBatchWindow, devices.ReasonWindow, blocksAllTasks, batchWindowObstacle, causeWriter.batchWindowClosed},
		{CodeBatchWindow, devices.ReasonWindow, blocksOneTask, batchWindowEndObstacle, causeWriter.batchWindowClosed},
		{CodePoolWindow, devices.ReasonWindow, blocksAllTasks, poolWindowObstacle, causeWriter.poolWindowClosed},
		{CodePoolWindow, devices.ReasonWindow, blocksOneTask, poolWindowEndObstacle, causeWriter.poolWindowClosed},
		{CodeStandstill, devices.ReasonUnavailable, blocksAllTasks, standstillObstacle, causeWriter.standstill},
		{CodeUnavailable, devices.ReasonUnavailable, blocksAllTasks, unreachableObstacle, causeWriter.unavailable},
		{CodeUnavailable, devices.ReasonUnavailable, blocksAllTasks, uncheckedObstacle, causeWriter.unavailable},
		{CodeLimited, devices.ReasonLimited, blocksOneTask, limitedObstacle, causeWriter.limited},
		{CodeCallersFull, devices.ReasonCallersFull, blocksAllTasks, areCallersFull, causeWriter.callersFull},
		{CodeFull, devices.ReasonFull, blocksAllTasks, poolFullObstacle, causeWriter.full},
	}
}

func blockedObstacle(s *Situation, _ *store.Candidate) (Obstacle, bool) { return Obstacle{}, s.Blocked }

func declinedObstacle(s *Situation, _ *store.Candidate) (Obstacle, bool) {
	return Obstacle{}, !s.Accept
}

func stoppingObstacle(s *Situation, _ *store.Candidate) (Obstacle, bool) {
	return Obstacle{}, s.MustStop
}

func busyObstacle(s *Situation, _ *store.Candidate) (Obstacle, bool) {
	if s.HeldGrant == nil || !s.Mentioned && s.HeldGrant.CancelWhy == "" {
		return Obstacle{}, false
	}
	return Obstacle{Until: s.HeldGrant.LeaseUntil}, true
}

func poolPausedObstacle(_ *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{}, c.PoolPaused
}

func batchPausedObstacle(_ *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{}, c.BatchPaused
}

// batchStartObstacle returns the obstacle of a task whose batch has not reached its start time. In this
// and the following functions, Until is Shared if all devices of a batch or a pool wait for it. It is not
// Shared if one task waits for it.
func batchStartObstacle(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: c.NotBefore, Shared: true}, c.NotBefore.After(s.Now)
}

func taskStartObstacle(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: c.RetryAt}, c.RetryAtIsNotBefore && c.RetryAt.After(s.Now)
}

func backoffObstacle(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: c.RetryAt}, !c.RetryAtIsNotBefore && c.RetryAt.After(s.Now)
}

func batchWindowObstacle(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: windowRetryTime(c.Window, c, s.Now), Shared: true}, isClosedNow(c.Window, s.Now)
}

func batchWindowEndObstacle(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: windowRetryTime(c.Window, c, s.Now), Shared: true}, isTooShort(c.Window, c, s.Now)
}

func poolWindowObstacle(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: windowRetryTime(c.PoolWindow, c, s.Now), Shared: true}, isClosedNow(c.PoolWindow, s.Now)
}

func poolWindowEndObstacle(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: windowRetryTime(c.PoolWindow, c, s.Now), Shared: true}, isTooShort(c.PoolWindow, c, s.Now)
}

func standstillObstacle(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: c.Standstill}, s.Now.Before(c.Standstill)
}

func unreachableObstacle(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{}, s.UnreachablePools[c.Pool]
}

func uncheckedObstacle(s *Situation, c *store.Candidate) (Obstacle, bool) {
	o, is := s.Obstacles[c.Task]
	return o, is && o.Code == CodeUnavailable
}

func limitedObstacle(s *Situation, c *store.Candidate) (Obstacle, bool) {
	o, is := s.Obstacles[c.Task]
	return o, is && o.Code == CodeLimited
}

func areCallersFull(s *Situation, _ *store.Candidate) (Obstacle, bool) {
	return Obstacle{}, s.CallerBound != nil && s.CallerBound.Full()
}

func poolFullObstacle(s *Situation, c *store.Candidate) (Obstacle, bool) {
	return Obstacle{}, s.FullPools[c.Pool]
}
