package decision

import (
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// scope says whether an obstacle of a caller also blocks the callers behind it. It has no effect on devices.
type scope bool

const (
	blocksAllTasks scope = false // callers keep their order
	blocksOneTask  scope = true  // callers that wait behind it may go first
)

// rule is a row of the table of obstacles.
type rule struct {
	code   Code
	reason devices.Reason // reason that the device is given
	scope  scope

	// applies returns the obstacle, and whether it exists. In deviceRules, applies gets an empty candidate as task.
	applies func(s *Situation, task *store.Candidate) (Obstacle, bool)
	explain func(x causeWriter, o Obstacle) Cause
}

// deviceRules returns the rules about the device itself. If one of them applies, the device gets no task, and its grant is not delivered again.
// The device is given the reason of the first rule that applies.
func deviceRules() []rule {
	return []rule{
		{CodeBlocked, devices.ReasonBlocked, blocksOneTask, func(s *Situation, _ *store.Candidate) (Obstacle, bool) {
			return Obstacle{}, s.Blocked
		}, causeWriter.blockedCause},
		{codeDeclined, devices.ReasonDeclined, blocksOneTask, func(s *Situation, _ *store.Candidate) (Obstacle, bool) {
			return Obstacle{}, !s.Accept
		}, causeWriter.reportOnlyCause},
		{codeStopping, devices.ReasonBusy, blocksOneTask, func(s *Situation, _ *store.Candidate) (Obstacle, bool) {
			return Obstacle{}, s.MustStop
		}, causeWriter.reportOnlyCause},
		{CodeBusy, devices.ReasonBusy, blocksOneTask, busyObstacle, causeWriter.busyCause},
	}
}

// busyObstacle returns the obstacle that the device is busy with its grant. isBusy is true if the report mentions the grant, or if the task
// of the grant must stop. Otherwise the grant is delivered again.
func busyObstacle(situation *Situation, _ *store.Candidate) (obstacle Obstacle, isBusy bool) {
	if situation.HeldGrant == nil || !situation.Mentioned && situation.HeldGrant.CancelWhy == "" {
		return Obstacle{}, false
	}
	return Obstacle{Until: situation.HeldGrant.LeaseUntil}, true
}

// taskRules returns the rules that apply to one task of an idle device. The device is given the reason of the first obstacle. An obstacle
// is Shared if all devices of a batch or a pool wait for its Until.
func taskRules() []rule {
	return []rule{
		{CodeWrongWire, devices.ReasonWrongWire, blocksOneTask, func(s *Situation, task *store.Candidate) (Obstacle, bool) {
			return Obstacle{}, s.Wire == devices.WireHawkbit && !task.FitsDDI
		}, causeWriter.wrongWireCause},
		{CodePoolPaused, devices.ReasonPaused, blocksAllTasks, func(_ *Situation, task *store.Candidate) (Obstacle, bool) {
			return Obstacle{}, task.PoolPaused
		}, causeWriter.poolPausedCause},
		{CodeBatchPaused, devices.ReasonPaused, blocksAllTasks, func(_ *Situation, task *store.Candidate) (Obstacle, bool) {
			return Obstacle{}, task.BatchPaused
		}, causeWriter.batchPausedCause},
		{CodeNotBefore, devices.ReasonWindow, blocksAllTasks, func(s *Situation, task *store.Candidate) (Obstacle, bool) {
			return Obstacle{Until: task.NotBefore, Shared: true}, task.NotBefore.After(s.Now)
		}, causeWriter.batchNotBegunCause},
		{CodeNotBefore, devices.ReasonWindow, blocksOneTask, func(s *Situation, task *store.Candidate) (Obstacle, bool) {
			return Obstacle{Until: task.RetryAt}, task.RetryAtIsNotBefore && task.RetryAt.After(s.Now)
		}, causeWriter.taskNotBegunCause},
		{CodeBackoff, devices.ReasonWindow, blocksOneTask, func(s *Situation, task *store.Candidate) (Obstacle, bool) {
			return Obstacle{Until: task.RetryAt}, !task.RetryAtIsNotBefore && task.RetryAt.After(s.Now)
		}, causeWriter.backoffCause},
		{CodeBatchWindow, devices.ReasonWindow, blocksAllTasks, func(s *Situation, task *store.Candidate) (Obstacle, bool) {
			return windowObstacle(task.Window, task, s.Now), isClosedNow(task.Window, s.Now)
		}, causeWriter.batchWindowClosedCause},
		{CodeBatchWindow, devices.ReasonWindow, blocksOneTask, func(s *Situation, task *store.Candidate) (Obstacle, bool) {
			return windowObstacle(task.Window, task, s.Now), closesTooSoon(task.Window, task, s.Now)
		}, causeWriter.batchWindowClosedCause},
		{CodePoolWindow, devices.ReasonWindow, blocksAllTasks, func(s *Situation, task *store.Candidate) (Obstacle, bool) {
			return windowObstacle(task.PoolWindow, task, s.Now), isClosedNow(task.PoolWindow, s.Now)
		}, causeWriter.poolWindowClosedCause},
		{CodePoolWindow, devices.ReasonWindow, blocksOneTask, func(s *Situation, task *store.Candidate) (Obstacle, bool) {
			return windowObstacle(task.PoolWindow, task, s.Now), closesTooSoon(task.PoolWindow, task, s.Now)
		}, causeWriter.poolWindowClosedCause},
		{CodeStandstill, devices.ReasonUnavailable, blocksAllTasks, func(s *Situation, task *store.Candidate) (Obstacle, bool) {
			return Obstacle{Until: task.Standstill}, s.Now.Before(task.Standstill)
		}, causeWriter.standstillCause},
		{CodeUnavailable, devices.ReasonUnavailable, blocksAllTasks, func(s *Situation, task *store.Candidate) (Obstacle, bool) {
			return Obstacle{}, s.UnreachablePools[task.Pool]
		}, causeWriter.unavailableCause},
		{CodeUnavailable, devices.ReasonUnavailable, blocksAllTasks, func(s *Situation, task *store.Candidate) (Obstacle, bool) {
			return s.policyObstacle(task, CodeUnavailable)
		}, causeWriter.unavailableCause},
		{CodeLimited, devices.ReasonLimited, blocksOneTask, func(s *Situation, task *store.Candidate) (Obstacle, bool) {
			return s.policyObstacle(task, CodeLimited)
		}, causeWriter.limitedCause},
		{CodeCallersFull, devices.ReasonCallersFull, blocksAllTasks, func(s *Situation, _ *store.Candidate) (Obstacle, bool) {
			return Obstacle{}, s.CallerBound != nil && s.CallerBound.IsFull()
		}, causeWriter.callersFullCause},
		{CodeFull, devices.ReasonFull, blocksAllTasks, func(s *Situation, task *store.Candidate) (Obstacle, bool) {
			return Obstacle{}, s.FullPools[task.Pool]
		}, causeWriter.poolFullCause},
	}
}

func windowObstacle(opening store.Opening, task *store.Candidate, now time.Time) Obstacle {
	return Obstacle{Until: windowRetryTime(opening, task, now), Shared: true}
}

// policyObstacle returns the obstacle that policies found for task. hasCode is false if there is none, or if it has another code.
func (s *Situation) policyObstacle(task *store.Candidate, code Code) (obstacle Obstacle, hasCode bool) {
	o, found := s.Obstacles[task.Task]
	return o, found && o.Code == code
}
