package decision

import (
	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// scope tells which tasks an obstacle of one task keeps from a slot.
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

	// applies reports whether the obstacle exists, and returns until when. For a rule of the device (deviceRules), c is an empty
	// candidate.
	applies func(s *Situation, c *store.Candidate) (Obstacle, bool)
	// explain describes the obstacle and its remedy for people.
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
		{CodeWrongWire, devices.ReasonWrongWire, blocksOneTask, wrongWireObstacle, causeWriter.wrongWire},
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

// blockedObstacle reports whether the device is blocked.
func blockedObstacle(s *Situation, _ *store.Candidate) (Obstacle, bool) {
	return Obstacle{}, s.Blocked
}

// declinedObstacle reports whether the device does not accept a task.
func declinedObstacle(s *Situation, _ *store.Candidate) (Obstacle, bool) {
	return Obstacle{}, !s.Accept
}

// stoppingObstacle reports whether the device runs a task that must stop.
func stoppingObstacle(s *Situation, _ *store.Candidate) (Obstacle, bool) {
	return Obstacle{}, s.MustStop
}

// busyObstacle reports whether the device is busy with its grant: the report mentions the grant, or the task of the grant must stop. Any
// other grant of the device is delivered again.
func busyObstacle(s *Situation, _ *store.Candidate) (Obstacle, bool) {
	if s.HeldGrant == nil || !s.Mentioned && s.HeldGrant.CancelWhy == "" {
		return Obstacle{}, false
	}
	return Obstacle{Until: s.HeldGrant.LeaseUntil}, true
}

// wrongWireObstacle reports whether the device speaks DDI and the payload of task is no DDI deployment, so that the device cannot read it.
func wrongWireObstacle(s *Situation, task *store.Candidate) (Obstacle, bool) {
	return Obstacle{}, s.Wire == devices.WireHawkbit && !task.IsDeployment
}

// poolPausedObstacle reports whether the pool of task is paused.
func poolPausedObstacle(_ *Situation, task *store.Candidate) (Obstacle, bool) {
	return Obstacle{}, task.PoolPaused
}

// batchPausedObstacle reports whether the batch of task is paused.
func batchPausedObstacle(_ *Situation, task *store.Candidate) (Obstacle, bool) {
	return Obstacle{}, task.BatchPaused
}

// batchStartObstacle reports whether the batch of task has not reached its start time, and returns the obstacle. In this and the following
// functions, the obstacle is Shared if all devices of a batch or a pool wait for its Until, and not if only one task waits for it.
func batchStartObstacle(s *Situation, task *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: task.NotBefore, Shared: true}, task.NotBefore.After(s.Now)
}

// taskStartObstacle reports whether task has not reached its own not_before, and returns the obstacle.
func taskStartObstacle(s *Situation, task *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: task.RetryAt}, task.RetryAtIsNotBefore && task.RetryAt.After(s.Now)
}

// backoffObstacle reports whether task waits for its next attempt, and returns the obstacle.
func backoffObstacle(s *Situation, task *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: task.RetryAt}, !task.RetryAtIsNotBefore && task.RetryAt.After(s.Now)
}

// batchWindowObstacle reports whether the windows of the batch of task are closed, and returns the obstacle.
func batchWindowObstacle(s *Situation, task *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: windowRetryTime(task.Window, task, s.Now), Shared: true}, isClosedNow(task.Window, s.Now)
}

// batchWindowEndObstacle reports whether the open window of the batch closes too soon for task, and returns the obstacle.
func batchWindowEndObstacle(s *Situation, task *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: windowRetryTime(task.Window, task, s.Now), Shared: true}, isTooShort(task.Window, task, s.Now)
}

// poolWindowObstacle reports whether the windows of the pool of task are closed, and returns the obstacle.
func poolWindowObstacle(s *Situation, task *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: windowRetryTime(task.PoolWindow, task, s.Now), Shared: true}, isClosedNow(task.PoolWindow, s.Now)
}

// poolWindowEndObstacle reports whether the open window of the pool closes too soon for task, and returns the obstacle.
func poolWindowEndObstacle(s *Situation, task *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: windowRetryTime(task.PoolWindow, task, s.Now), Shared: true}, isTooShort(task.PoolWindow, task, s.Now)
}

// standstillObstacle reports whether the pool of task grants nothing after a restore, and returns the obstacle.
func standstillObstacle(s *Situation, task *store.Candidate) (Obstacle, bool) {
	return Obstacle{Until: task.Standstill}, s.Now.Before(task.Standstill)
}

// unreachableObstacle reports whether the semaphore does not answer for the pool of task.
func unreachableObstacle(s *Situation, task *store.Candidate) (Obstacle, bool) {
	return Obstacle{}, s.UnreachablePools[task.Pool]
}

// uncheckedObstacle reports whether the policies of task cannot be checked, and returns the obstacle.
func uncheckedObstacle(s *Situation, task *store.Candidate) (Obstacle, bool) {
	o, is := s.Obstacles[task.Task]
	return o, is && o.Code == CodeUnavailable
}

// limitedObstacle reports whether a policy refuses task, and returns the obstacle.
func limitedObstacle(s *Situation, task *store.Candidate) (Obstacle, bool) {
	o, is := s.Obstacles[task.Task]
	return o, is && o.Code == CodeLimited
}

// areCallersFull reports whether callers hold as many slots of the pool as they may.
func areCallersFull(s *Situation, _ *store.Candidate) (Obstacle, bool) {
	return Obstacle{}, s.CallerBound != nil && s.CallerBound.Full()
}

// poolFullObstacle reports whether the pool of task has no free slot.
func poolFullObstacle(s *Situation, task *store.Candidate) (Obstacle, bool) {
	return Obstacle{}, s.FullPools[task.Pool]
}
