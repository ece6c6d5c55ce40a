package dispatcher

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// Explanation says where a task stands and why.
type Explanation struct {
	State   store.TaskState
	Reasons []Reason // at least one; what the device is told first
}

// Reason is one thing that keeps a task where it is.
type Reason struct {
	Code           Code
	Detail         string    // for people
	Until          time.Time // when it may end by itself; zero: unknown
	Position       int       // in the line of its pool, 1 is next; 0: unknown, or in no line
	EstimatedStart time.Time // zero: cannot be known
	Remedy         string    // what would change it, for people
}

// Why explains a task: ended, running, or all that stands between it and its
// start, judged as reports are. What the semaphore knows is told if it answers.
// store.ErrNotFound.
func (d *Dispatcher) Why(ctx context.Context, task int64) (Explanation, error) {
	v, err := d.store.TaskView(ctx, task)
	if err != nil {
		return Explanation{}, fmt.Errorf("explaining: %w", err)
	}
	e := Explanation{State: v.Task.State}
	switch {
	case v.Running != nil:
		e.Reasons = whyRunning(v)
	case v.Task.State != store.Pending:
		e.Reasons = whyEnded(v)
	default:
		e.Reasons = d.whyWaiting(ctx, v)
	}
	return e, nil
}

// whyWaiting tells what stands in the way of a task that waits; then whether
// its device is there to ask for it.
func (d *Dispatcher) whyWaiting(ctx context.Context, v store.TaskView) []Reason {
	open := slices.IndexFunc(v.Candidates, func(c store.Candidate) bool { return c.Task == v.Task.ID })
	if open < 0 {
		return []Reason{whyClosed(v)}
	}
	c := v.Candidates[open]
	lines := d.linesOf(ctx, v)
	s := waitingSituation(v, lines)
	x := explainer{TaskView: v, line: lines[c.Pool], candidate: c}
	var reasons []Reason
	if v.Device != nil && v.Device.Revoked {
		reasons = append(reasons, x.revoked())
	}
	for _, o := range s.obstaclesOf(c) {
		reasons = append(reasons, x.obstacle(o))
	}
	if other := goesFirst(s, c); other != nil {
		reasons = append(reasons, x.otherFirst(*other))
	}
	if away, is := x.away(d.lastSeenOf(v), d.config.ReportPeriod); is {
		reasons = append(reasons, away)
	}
	if len(reasons) == 0 {
		reasons = append(reasons, x.nextReport(d.lastSeenOf(v), d.config.ReportPeriod))
	}
	return reasons
}

// waitingSituation is that of the next report of the task's device, as far as
// it can be foreseen: that it accepts work, and knows of the grant it holds.
func waitingSituation(v store.TaskView, lines map[string]poolLine) Situation {
	s := Situation{
		Now: v.Now, Standstill: v.Standstill, Accept: true,
		Blocked: v.Device != nil && v.Device.Blocked,
		Holding: v.Grant, Mentioned: true,
		Candidates: v.Candidates, Full: make(map[string]bool), Unsure: make(map[string]bool),
	}
	for pool, line := range lines {
		s.Full[pool], s.Unsure[pool] = line.full(), line.unreachable
	}
	return s
}

// goesFirst is the other task that the device would be given before this one,
// had its pool room: of its batch, or of another pool; nil: none. Between batches
// of one pool the semaphore chooses. A task that cannot start anyway waits for no
// other.
func goesFirst(s Situation, c store.Candidate) *store.Candidate {
	s.Full, s.Unsure = maps.Clone(s.Full), maps.Clone(s.Unsure)
	s.Full[c.Pool], s.Unsure[c.Pool] = false, false
	if len(s.obstaclesOf(c)) > 0 {
		return nil
	}
	open := Decide(s).Tasks // not empty: c has no obstacle
	if open[0].Pool != c.Pool {
		return &open[0]
	}
	for _, o := range open {
		if o.Batch == c.Batch && cmp.Or(cmp.Compare(c.Priority, o.Priority), cmp.Compare(o.Task, c.Task)) < 0 {
			return &o
		}
	}
	return nil
}

// poolLine is how full a pool is.
type poolLine struct {
	held, capacity int
	unreachable    bool // the semaphore did not say
}

func (l poolLine) full() bool { return !l.unreachable && l.held >= l.capacity }

// linesOf asks the semaphore about every pool that the device has open tasks of.
func (d *Dispatcher) linesOf(ctx context.Context, v store.TaskView) map[string]poolLine {
	lines := make(map[string]poolLine)
	for _, c := range v.Candidates {
		if _, known := lines[c.Pool]; !known {
			lines[c.Pool] = d.lineOf(ctx, c.Pool, v)
		}
	}
	return lines
}

// lineOf asks about one pool. One that the semaphore does not know is restored
// with the next report, from what the ledger says.
func (d *Dispatcher) lineOf(ctx context.Context, pool string, v store.TaskView) poolLine {
	snapshot, err := d.semaphore.Snapshot(ctx, pool)
	switch {
	case err != nil:
		d.log.WarnContext(ctx, "task explained without the semaphore", "pool", pool, "err", err)
		return poolLine{unreachable: true}
	case snapshot.Known:
		return poolLine{held: len(snapshot.Leases), capacity: snapshot.Capacity}
	case pool == v.Pool.Name:
		return poolLine{held: v.Held, capacity: v.Pool.Capacity}
	}
	return poolLine{capacity: 1}
}

// lastSeenOf is when the device last reported, as the ledger or this replica
// knows it; zero: never.
func (d *Dispatcher) lastSeenOf(v store.TaskView) time.Time {
	seen := d.seen.at(v.Task.Device)
	if v.Device != nil && v.Device.LastSeen != nil && v.Device.LastSeen.After(seen) {
		seen = *v.Device.LastSeen
	}
	return seen
}
