package policies

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/limits/policy"
	"github.com/fleetslots/dispatcher/store"
)

// pendingAgain is the delay before the next check of a start that was refused only because another task has an open reservation.
const pendingAgain = time.Second

// errNoLimits is returned if this process has no limiter, so it cannot check policies.
var errNoLimits = errors.New("no limits are configured")

// AnyHasPolicies reports whether at least one of the tasks has policies.
func AnyHasPolicies(tasks []store.Candidate) bool { return slices.ContainsFunc(tasks, taskHasPolicies) }

func taskHasPolicies(task store.Candidate) bool {
	return task.PoolLimits != nil || task.Limits != nil || task.ProfileLimits != nil
}

// ReserveStarts checks the policies of tasks, which belong to one pool and to the view's device, and reserves each start that the policies
// allow. passed are the tasks that may start. obstacleByRefusedTask has the obstacle of each other task, by task id. When the outcome is known,
// the caller must call SettleReservations with reserved.
//
// leaseIDOf returns the id of the lease that the start of a task would have. At most one task of a group starts (limits.Check.Group).
func (k *Checker) ReserveStarts(ctx context.Context, view store.DeviceView, tasks []store.Candidate, leaseIDOf func(store.Candidate) string, startGroup string) (passed []store.Candidate, reserved []limits.Check, obstacleByRefusedTask map[int64]decision.Obstacle) {
	obstacleByRefusedTask = make(map[int64]decision.Obstacle)
	asked := k.checkTasks(ctx, view, tasks, leaseIDOf, startGroup, k.reserveAll)
	for _, c := range tasks {
		a, is := asked[c.Task]
		if is {
			k.metrics.countCheckResult(c.Pool, a)
			k.logRefusals(ctx, c.Pool, a)
		}
		switch {
		case !is:
			passed = append(passed, c)
		case a.obstacle != nil:
			obstacleByRefusedTask[c.Task] = *a.obstacle
		default:
			passed, reserved = append(passed, c), append(reserved, a.check)
		}
	}
	return passed, reserved, obstacleByRefusedTask
}

// checkResult is the result of checking the policies of one task.
type checkResult struct {
	check     limits.Check
	refused   []limits.ItemRefusal // each refers to an item of the check by its index
	unchecked bool                 // the policies could not be checked; on_error decided
	obstacle  *decision.Obstacle   // nil means that the task may start
}

// checkFunc sends checks of one pool to the limiter, and returns one answer for each. It is reserveAll or checkAll.
type checkFunc func(ctx context.Context, pool string, checks []limits.Check) ([]limits.Answer, error)

type taskCheck struct {
	check     limits.Check
	task      store.Candidate
	now       time.Time // the ledger's time
	neverDrop bool      // the task is not dropped, even if a policy that drops refuses it
}

// checkTasks checks those tasks that have policies, and returns their results by task id. All tasks belong to one pool and to the view's device.
func (k *Checker) checkTasks(ctx context.Context, view store.DeviceView, tasks []store.Candidate, leaseIDOf func(store.Candidate) string, startGroup string, sendChecks checkFunc) (resultByTask map[int64]checkResult) {
	questions, out := k.newTaskChecks(ctx, view, tasks, leaseIDOf, startGroup)
	for i, j := range k.runChecks(ctx, questions, sendChecks) {
		out[questions[i].task.Task] = j
	}
	return out
}

// newTaskChecks returns a check for each task that has policies. If the policies of a task cannot be read, resultByUnreadableTask has the result
// of this task instead, by task id.
func (k *Checker) newTaskChecks(ctx context.Context, view store.DeviceView, tasks []store.Candidate, leaseIDOf func(store.Candidate) string, startGroup string) (taskChecks []taskCheck, resultByUnreadableTask map[int64]checkResult) {
	resultByUnreadableTask = make(map[int64]checkResult)
	for _, c := range tasks {
		if !taskHasPolicies(c) {
			continue
		}
		rules, err := k.ruleCache.compiledRules(candidatePolicies(c, view.Device))
		if err != nil {
			k.config.Logger.WarnContext(ctx, "policies cannot be read", "pool", c.Pool, "batch", c.Batch, "err", err)
			resultByUnreadableTask[c.Task] = checkResult{obstacle: uncheckedObstacle("its policies cannot be read", "set the policies again, or upgrade this replica: a later release may have written them")}
			continue
		}
		taskChecks = append(taskChecks, taskCheck{
			check: limits.NewCheck(leaseIDOf(c), startGroup, rules, candidateFacts(c, view.Device)), task: c, now: view.Now,
			neverDrop: c.StartedBefore || view.Device != nil && store.IsCaller(view.Device.ID), // a caller gets the refusal and tries again
		})
	}
	return taskChecks, resultByUnreadableTask
}

// runChecks sends taskChecks, which belong to one pool, in one call of sendChecks, and returns one result for each.
func (k *Checker) runChecks(ctx context.Context, taskChecks []taskCheck, sendChecks checkFunc) []checkResult {
	if len(taskChecks) == 0 {
		return nil
	}
	checks, out := make([]limits.Check, len(taskChecks)), make([]checkResult, len(taskChecks))
	for i, q := range taskChecks {
		checks[i] = q.check
	}
	pool := taskChecks[0].task.Pool
	answers, err := sendChecks(ctx, pool, checks)
	if err != nil {
		k.config.Logger.WarnContext(ctx, "policies cannot be checked", "pool", pool, "err", err)
	}
	for i, q := range taskChecks {
		if err == nil {
			out[i] = evaluateAnswer(q.check, answers[i], q.now, q.neverDrop)
		} else {
			out[i] = uncheckedResult(q.check, "its policies cannot be checked now", "")
		}
	}
	return out
}

func candidatePolicies(task store.Candidate, device *store.Device) startPolicies {
	p := startPolicies{pool: task.Pool, batch: task.Batch, ofPool: task.PoolLimits, ofBatch: task.Limits, ofProfile: task.ProfileLimits}
	if device != nil {
		p.profile = device.Profile
	}
	return p
}

func candidateFacts(task store.Candidate, device *store.Device) limits.Facts {
	f := limits.Facts{Pool: task.Pool, Kind: task.Kind, Batch: task.Batch, Payload: task.Payload}
	if device != nil {
		f.Device, f.Tags, f.Attributes = device.ID, device.Tags, device.Attributes
	}
	return f
}

// allFailOpen reports whether all rules have on_error: open. If so, a start or a take that cannot be checked is allowed.
func allFailOpen(rules []*limits.Rule) bool {
	return !slices.ContainsFunc(rules, func(r *limits.Rule) bool { return !r.FailsOpen() })
}

// uncheckedResult returns the result for a start whose policies could not be checked. cause and remedy are the texts of the obstacle.
func uncheckedResult(check limits.Check, cause, remedy string) checkResult {
	j := checkResult{check: check, unchecked: true}
	if !allFailOpen(rulesOfItems(check.Items)) {
		j.obstacle = uncheckedObstacle(cause, remedy)
	}
	return j
}

func uncheckedObstacle(cause, remedy string) *decision.Obstacle {
	return &decision.Obstacle{Code: decision.CodeUnavailable, Reason: devices.ReasonUnavailable, Detail: cause, Remedy: remedy}
}

// evaluateAnswer returns the result of check, to which the limiter gave answer. now is the ledger's time.
func evaluateAnswer(check limits.Check, answer limits.Answer, now time.Time, neverDrop bool) checkResult {
	j := checkResult{check: check}
	switch answer.Status {
	case limits.StatusPassed:
		return j
	case limits.StatusLimited:
	default:
		return uncheckedResult(check, "the counts of its policies are being rebuilt", decision.NothingToDo)
	}
	j.refused = answer.Refusals
	last, drops := decisiveRefusal(check, answer, neverDrop)
	item := check.Items[last.Item]
	owner, _, _ := strings.Cut(item.Rule.Owner, " ")
	o := &decision.Obstacle{
		Code: decision.CodeLimited, Reason: devices.ReasonLimited, Until: now.Add(last.Wait), Owner: decision.Subject(owner),
		Policy: item.Rule.Name, Allows: item.Rule.DescribeWindow(last.Window), DropsTask: drops,
	}
	what := fmt.Sprintf("policy %s of %s allows %s for %s", item.Rule.Name, item.Rule.Owner, item.Rule.DescribeWindow(last.Window), item.Subject.Label)
	switch {
	case last.Pending:
		o.Until = now.Add(pendingAgain)
		o.Detail = what + ", and another start is being decided"
	case item.Rule.Algorithm == policy.Calendar: // calendar periods begin on a full minute; now was read before the answer arrived
		o.Until = o.Until.Round(time.Minute)
		o.Detail = fmt.Sprintf("%s; this %s began at %s, and the next start is allowed at %s", what, item.Rule.Period, decision.FormatTime(now.Add(-last.Oldest).Round(time.Minute)), decision.FormatTime(o.Until))
	default:
		o.Detail = fmt.Sprintf("%s; the oldest counted start was at %s, and the next start is allowed at %s", what, decision.FormatTime(now.Add(-last.Oldest)), decision.FormatTime(o.Until))
	}
	j.obstacle = o
	return j
}

// decisiveRefusal returns lastRefusal, the refusal in answer that ends last, which is the only refusal that the obstacle names. If some refusals
// drop the task, dropsTask is true, and only these are compared. A refusal that is due to an open reservation drops no task, because the start
// may be allowed later.
func decisiveRefusal(check limits.Check, answer limits.Answer, neverDrop bool) (lastRefusal limits.ItemRefusal, dropsTask bool) {
	dropping := limits.Answer{Refusals: slices.DeleteFunc(slices.Clone(answer.Refusals), func(r limits.ItemRefusal) bool {
		return neverDrop || r.Pending || !check.Items[r.Item].Rule.Drops()
	})}
	if len(dropping.Refusals) > 0 {
		return dropping.LongestRefusal(), true
	}
	return answer.LongestRefusal(), false
}

// SettleReservations counts the reserved start whose lease id is committedLeaseID, and releases the other reservations. If SettleReservations
// fails, SettleAllReservations settles all of them later.
func (k *Checker) SettleReservations(ctx context.Context, pool, committedLeaseID string, reserved []limits.Check) {
	if len(reserved) == 0 || k.config.Limits == nil {
		return
	}
	var err error
	if i := slices.IndexFunc(reserved, func(c limits.Check) bool { return c.Lease == committedLeaseID }); i >= 0 {
		if err = k.config.Limits.Reservations.Settle(ctx, pool, reserved[i], slices.Delete(slices.Clone(reserved), i, i+1)); err != nil {
			k.uncounted.addMissedChecks(pool, k.config.Now(), reserved[i:i+1])
		}
	} else {
		err = k.config.Limits.Reservations.Release(ctx, pool, reserved)
	}
	if err != nil {
		k.config.Logger.WarnContext(ctx, "starts not counted; they are counted later", "pool", pool, "err", err)
	}
}

// reserveAll reserves the starts of checks. If Redis lacks a rule or has overdue reservations, reserveAll repairs this and retries. If the repairs
// were not enough, no answer has StatusPassed.
func (k *Checker) reserveAll(ctx context.Context, pool string, checks []limits.Check) ([]limits.Answer, error) {
	if k.config.Limits == nil {
		return nil, errNoLimits
	}
	for repairs := 0; ; repairs++ {
		answers, err := k.config.Limits.Reservations.Reserve(ctx, pool, checks)
		if err != nil {
			return nil, fmt.Errorf("reserving: %w", err)
		}
		mustRetry, err := k.repairLimiterState(ctx, pool, checks, answers)
		if err == nil && !mustRetry {
			return answers, nil
		}
		if err == nil && repairs < maxRepairs {
			continue
		}
		if released := k.config.Limits.Reservations.Release(ctx, pool, checks); released != nil {
			k.config.Logger.WarnContext(ctx, "reservations not given back; they are given back later", "pool", pool, "err", released)
		}
		if err != nil {
			return nil, err
		}
		for i := range answers { // the reservations are released, so nothing passes; a refusal stays a refusal
			if answers[i].Status == limits.StatusPassed {
				answers[i].Status = limits.StatusUnknown
			}
		}
		return answers, nil
	}
}

func (k *Checker) checkAll(ctx context.Context, pool string, checks []limits.Check) ([]limits.Answer, error) {
	if k.config.Limits == nil {
		return nil, errNoLimits
	}
	return k.config.Limits.Reservations.Peek(ctx, pool, checks)
}

// FindObstacles checks the policies of the waiting tasks in views as a report does, but reserves nothing. It returns one map for each view.
// The map has, by task id, the obstacle of each task that its policies refuse or whose policies cannot be checked. FindObstacles calls the
// limiter once for each pool.
func (k *Checker) FindObstacles(ctx context.Context, views []store.TaskView) (obstaclesOfEachView []map[int64]decision.Obstacle) {
	found := make([]map[int64]decision.Obstacle, len(views))
	byPool := make(map[string]*poolChecks)
	for i, v := range views {
		found[i] = make(map[int64]decision.Obstacle)
		if AnyHasPolicies(v.Candidates) {
			k.collectChecks(ctx, v, i, byPool, found[i])
		}
	}
	var group rescue.Group
	group.SetLimit(maxConcurrentChecks)
	for _, l := range byPool {
		group.Go(func() error {
			l.answers = k.runChecks(ctx, l.checks, k.checkAll)
			return nil
		})
	}
	_ = k.config.Panicked.Report("checking limits", group.Wait()) // only a panic can be an error here
	for _, l := range byPool {
		for i, j := range l.answers {
			if j.obstacle != nil {
				found[l.views[i]][l.checks[i].task.Task] = *j.obstacle
			}
		}
	}
	return found
}

type poolChecks struct {
	checks  []taskCheck
	views   []int // for each check, the index of its view
	answers []checkResult
}

// collectChecks adds the checks of the view's tasks to checksByPool. viewIndex is the index of the view. If the policies of a task cannot be
// read, collectChecks adds the obstacle of the task to obstaclesByTask, by task id.
func (k *Checker) collectChecks(ctx context.Context, view store.TaskView, viewIndex int, checksByPool map[string]*poolChecks, obstaclesByTask map[int64]decision.Obstacle) {
	if store.IsCaller(view.Task.Device) { // callers are not registered; policies count by the caller's name
		view.Device = &store.Device{ID: view.Task.Device}
	}
	lease := func(c store.Candidate) string { return fmt.Sprintf("%d.why", c.Task) }
	list, unreadable := k.newTaskChecks(ctx, view.DeviceView, view.Candidates, lease, "why")
	for task, j := range unreadable {
		obstaclesByTask[task] = *j.obstacle
	}
	for _, q := range list {
		l := checksByPool[q.task.Pool]
		if l == nil {
			l = &poolChecks{}
			checksByPool[q.task.Pool] = l
		}
		l.checks, l.views = append(l.checks, q), append(l.views, viewIndex)
	}
}

// RecordUncountedStarts records reserved starts whose claim may or may not have been committed. SettleAllReservations settles them later.
func (k *Checker) RecordUncountedStarts(pool string, reserved []limits.Check) {
	k.uncounted.addMissedChecks(pool, k.config.Now(), reserved)
}
