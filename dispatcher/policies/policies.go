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
	"github.com/fleetslots/dispatcher/store"
)

// Limits decides how often tasks may start, and callers may take; *limits.Limiter. A pool is a
// scope, and a limit set.
type Limits interface {
	takeLimits
	Reserve(ctx context.Context, pool string, checks []limits.Check) ([]limits.Answer, error)
	Look(ctx context.Context, pool string, checks []limits.Check) ([]limits.Answer, error)
	Settle(ctx context.Context, pool string, started limits.Check, others []limits.Check) error
	Count(ctx context.Context, pool string, checks []limits.Check, ago time.Duration) error
	Release(ctx context.Context, pool string, checks []limits.Check) error
	Overdue(ctx context.Context, pool string) ([]string, error)
	Rebuild(ctx context.Context, pool string, rules []*limits.Rule, history limits.History) error
	Forget(ctx context.Context, pool string, rules []*limits.Rule) error
	Top(ctx context.Context, pool string, limit int) ([]limits.Limited, error)
	Usage(ctx context.Context, pool string, items []limits.Item) ([]limits.Standing, error)
	Highest(ctx context.Context, pool string, rules []*limits.Rule, limit int) ([]limits.Use, error)
	Tell(ctx context.Context) error
}

// pendingAgain is when to ask again where only a start that is being decided
// stands in the way.
const pendingAgain = time.Second

// errNoLimits: policies cannot be checked by this process.
var errNoLimits = errors.New("no limits are configured")

// Limited says whether one of the tasks has policies.
func Limited(open []store.Candidate) bool { return slices.ContainsFunc(open, isLimited) }

func isLimited(c store.Candidate) bool {
	return c.PoolLimits != nil || c.Limits != nil || c.ProfileLimits != nil
}

// Reserve asks the policies of tasks of one pool, before a slot is asked for, so that no
// slot waits for them. Each that may start is reserved, until Settle says which of them did.
// refused is what the policies say against the others.
func (k *Checker) Reserve(
	ctx context.Context, view store.View, open []store.Candidate, lease func(store.Candidate) string, group string,
) (passed []store.Candidate, reserved []limits.Check, refused map[int64]decision.Obstacle) {
	refused = make(map[int64]decision.Obstacle)
	asked := k.ask(ctx, view, open, lease, group, k.reserveAll)
	for _, c := range open {
		a, is := asked[c.Task]
		if is {
			k.metrics.checked(c.Pool, a)
			k.refusals.log(ctx, k.config.Logger, c.Pool, a)
		}
		switch {
		case !is:
			passed = append(passed, c)
		case a.obstacle != nil:
			refused[c.Task] = *a.obstacle
		default:
			passed, reserved = append(passed, c), append(reserved, a.check)
		}
	}
	return passed, reserved, refused
}

// judged is what the policies say of one task.
type judged struct {
	check     limits.Check
	refused   []limits.Refusal   // by items of the check
	unchecked bool               // they could not be asked, whatever follows from that
	obstacle  *decision.Obstacle // nil: it may start
}

// asking is how a limiter is asked.
type asking func(ctx context.Context, pool string, checks []limits.Check) ([]limits.Answer, error)

// ask asks the policies of the tasks that have any, all of one pool.
func (k *Checker) ask(ctx context.Context, v store.View, open []store.Candidate, lease func(store.Candidate) string, group string, how asking) map[int64]judged {
	out := make(map[int64]judged)
	var checks []limits.Check
	var tasks []store.Candidate
	for _, c := range open {
		if !isLimited(c) {
			continue
		}
		rules, err := k.rules.of(sourcesOf(c, v.Device))
		if err != nil {
			k.config.Logger.WarnContext(ctx, "policies cannot be read", "pool", c.Pool, "batch", c.Batch, "err", err)
			out[c.Task] = judged{obstacle: unchecked("its policies cannot be read", "they may be of a later release: set them anew, or upgrade this replica")}
			continue
		}
		checks, tasks = append(checks, limits.NewCheck(lease(c), group, rules, factsOf(c, v.Device))), append(tasks, c)
	}
	if len(checks) == 0 {
		return out
	}
	answers, err := how(ctx, tasks[0].Pool, checks)
	if err != nil {
		k.config.Logger.WarnContext(ctx, "policies cannot be checked", "pool", tasks[0].Pool, "err", err)
	}
	for i, c := range tasks {
		if err == nil {
			// A caller is told, and asks again.
			out[c.Task] = judge(checks[i], answers[i], v.Now, c.Tried || v.Device != nil && store.IsCaller(v.Device.ID))
		} else {
			out[c.Task] = unasked(checks[i], "its policies cannot be checked now", "")
		}
	}
	return out
}

func sourcesOf(c store.Candidate, device *store.Device) sources {
	p := sources{pool: c.Pool, batch: c.Batch, ofPool: c.PoolLimits, ofBatch: c.Limits, ofProfile: c.ProfileLimits}
	if device != nil {
		p.profile = device.Profile
	}
	return p
}

func factsOf(c store.Candidate, device *store.Device) limits.Facts {
	f := limits.Facts{Pool: c.Pool, Kind: c.Kind, Batch: c.Batch, Payload: c.Payload}
	if device != nil {
		f.Device, f.Tags, f.Attributes = device.ID, device.Tags, device.Attributes
	}
	return f
}

// failsOpen says that all policies of a check let it pass when they cannot be asked.
func failsOpen(c limits.Check) bool {
	for _, item := range c.Items {
		if !item.Rule.FailsOpen() {
			return false
		}
	}
	return true
}

// unasked is what becomes of a start whose policies gave no answer.
func unasked(c limits.Check, why, remedy string) judged {
	j := judged{check: c, unchecked: true}
	if !failsOpen(c) {
		j.obstacle = unchecked(why, remedy)
	}
	return j
}

func unchecked(why, remedy string) *decision.Obstacle {
	return &decision.Obstacle{Code: decision.CodeUnavailable, Reason: devices.ReasonUnavailable, Detail: why, Remedy: remedy}
}

// judge turns an answer into the obstacle it is, if any.
func judge(c limits.Check, a limits.Answer, now time.Time, keep bool) judged {
	j := judged{check: c}
	switch a.Status {
	case limits.StatusPassed:
		return j
	case limits.StatusLimited:
	default:
		return unasked(c, "its policies are being counted anew", decision.NothingToDo)
	}
	j.refused = a.Refusals
	last, drops := decisive(c, a, keep)
	item := c.Items[last.Item]
	owner, _, _ := strings.Cut(item.Rule.Owner, " ")
	o := &decision.Obstacle{
		Code: decision.CodeLimited, Reason: devices.ReasonLimited, Until: now.Add(last.Wait), Owner: decision.Subject(owner),
		Policy: item.Rule.Name, Allows: item.Rule.Describe(last.Window), Drops: drops,
	}
	what := fmt.Sprintf("policy %s of %s lets %s start for %s", item.Rule.Name, item.Rule.Owner, item.Rule.Describe(last.Window), item.Subject.Label)
	switch {
	case last.Pending:
		o.Until = now.Add(pendingAgain)
		o.Detail = what + ", and another one is just being decided"
	case item.Rule.Algorithm == limits.Calendar: // its periods begin on the minute; now was read before the answer came
		o.Until = o.Until.Round(time.Minute)
		o.Detail = fmt.Sprintf("%s; this %s began at %s, and the next one may start at %s", what, item.Rule.Period, decision.At(now.Add(-last.Oldest).Round(time.Minute)), decision.At(o.Until))
	default:
		o.Detail = fmt.Sprintf("%s; the first of them started at %s, and the next may at %s", what, decision.At(now.Add(-last.Oldest)), decision.At(o.Until))
	}
	j.obstacle = o
	return j
}

// decisive is the refusal that a start is told: of the policies that drop what they refuse,
// else of all, the one that opens last. Where nothing but a reservation refuses, the start
// may yet be let pass, and is not dropped. Nor is one to keep: a task that was tried may be refused
// by its own first start.
func decisive(c limits.Check, a limits.Answer, keep bool) (last limits.Refusal, drops bool) {
	dropping := limits.Answer{Refusals: slices.DeleteFunc(slices.Clone(a.Refusals), func(r limits.Refusal) bool {
		return keep || r.Pending || !c.Items[r.Item].Rule.Drops()
	})}
	if len(dropping.Refusals) > 0 {
		return dropping.Last(), true
	}
	return a.Last(), false
}

// Settle says which of the reserved tasks started; none: all are given back.
// SettleAll finds out later what cannot be told now.
func (k *Checker) Settle(ctx context.Context, pool, committed string, reserved []limits.Check) {
	if len(reserved) == 0 || k.config.Limits == nil {
		return
	}
	var err error
	if i := slices.IndexFunc(reserved, func(c limits.Check) bool { return c.Lease == committed }); i >= 0 {
		if err = k.config.Limits.Settle(ctx, pool, reserved[i], slices.Delete(slices.Clone(reserved), i, i+1)); err != nil {
			k.uncounted.add(pool, k.config.Now(), reserved[i:i+1])
		}
	} else {
		err = k.config.Limits.Release(ctx, pool, reserved)
	}
	if err != nil {
		k.config.Logger.WarnContext(ctx, "what started is counted later", "pool", pool, "err", err)
	}
}

// reserveAll reserves, when need be after finding out what is not known yet.
func (k *Checker) reserveAll(ctx context.Context, pool string, checks []limits.Check) ([]limits.Answer, error) {
	if k.config.Limits == nil {
		return nil, errNoLimits
	}
	for mends := 0; ; mends++ {
		answers, err := k.config.Limits.Reserve(ctx, pool, checks)
		if err != nil {
			return nil, fmt.Errorf("reserving: %w", err)
		}
		again, err := k.learn(ctx, pool, checks, answers)
		if err == nil && again && mends < mostRepairs {
			continue
		}
		if err != nil || again {
			if released := k.config.Limits.Release(ctx, pool, checks); released != nil {
				k.config.Logger.WarnContext(ctx, "reservations are given back later", "pool", pool, "err", released)
			}
		}
		return answers, err
	}
}

// lookAt asks without reserving.
func (k *Checker) lookAt(ctx context.Context, pool string, checks []limits.Check) ([]limits.Answer, error) {
	if k.config.Limits == nil {
		return nil, errNoLimits
	}
	return k.config.Limits.Look(ctx, pool, checks)
}

// Of are the obstacles that policies are to the waiting tasks of a device,
// without reserving anything. Whether they refuse is asked as reports ask.
func (k *Checker) Of(ctx context.Context, v store.TaskView) map[int64]decision.Obstacle {
	if store.IsCaller(v.Task.Device) { // none is registered, and policies count by its name
		v.Device = &store.Device{ID: v.Task.Device}
	}
	byPool := make(map[string][]store.Candidate)
	for _, c := range v.Candidates {
		byPool[c.Pool] = append(byPool[c.Pool], c)
	}
	found := make(map[int64]decision.Obstacle)
	for _, open := range byPool {
		lease := func(c store.Candidate) string { return fmt.Sprintf("%d.why", c.Task) }
		for task, j := range k.ask(ctx, v.View, open, lease, "why", k.lookAt) {
			if j.obstacle != nil {
				found[task] = *j.obstacle
			}
		}
	}
	return found
}

// OfEach are those of many views, in their order.
func (k *Checker) OfEach(ctx context.Context, views []store.TaskView) []map[int64]decision.Obstacle {
	all := make([]map[int64]decision.Obstacle, len(views))
	var group rescue.Group
	group.SetLimit(looksAtOnce)
	for i, v := range views {
		if Limited(v.Candidates) {
			group.Go(func() error {
				all[i] = k.Of(ctx, v)
				return nil
			})
		}
	}
	_ = k.config.Panicked.Tell("looking at limits", group.Wait()) // none fails otherwise
	return all
}

// Uncounted notes starts of which it is not known whether they were: it is found out by
// SettleAll.
func (k *Checker) Uncounted(pool string, reserved []limits.Check) {
	k.uncounted.add(pool, k.config.Now(), reserved)
}
