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
	At      time.Time // by the ledger's clock
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
	e := Explanation{At: v.Now, State: v.Task.State}
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
	limited := d.limitsOf(ctx, v)
	lines := d.linesOf(ctx, v, c, limited)
	s := waitingSituation(v, lines, limited)
	x := explainer{
		TaskView: v, line: lines[c.Pool], candidate: c,
		seen: d.lastSeenOf(v), period: d.config.ReportPeriod,
	}
	if d.holds.known(c.Pool) {
		x.turn = d.holds.mean(c.Pool) * time.Duration(x.line.position) / time.Duration(max(x.line.capacity, 1))
	}
	var reasons []Reason
	if v.Device != nil && v.Device.Revoked() {
		reasons = append(reasons, x.revoked())
	}
	obstacles := s.obstaclesOf(c)
	if len(reasons)+len(obstacles) > 1 { // it is not its turn that the task waits for
		x.line.position = 0
	}
	for _, o := range obstacles {
		reasons = append(reasons, x.obstacle(o))
	}
	if other := goesFirst(s, c, x.line.first); other != nil {
		reasons = append(reasons, x.otherFirst(*other))
	}
	if away, is := x.away(); is {
		reasons = append(reasons, away)
	}
	switch {
	case len(reasons) == 0:
		reasons = append(reasons, x.nextReport())
	case len(reasons) == 1 && reasons[0].Code == CodeFull: // nothing but the line is before it
		reasons[0].EstimatedStart = x.start()
	}
	return reasons
}

// waitingSituation is that of the next report of the task's device, as far as
// it can be foreseen: that it accepts work, and knows of the grant it holds.
func waitingSituation(v store.TaskView, lines map[string]poolLine, limited map[int64]Obstacle) Situation {
	s := Situation{
		Now: v.Now, Standstill: v.Standstill, Accept: true,
		Blocked: v.Device != nil && v.Device.Blocked,
		Holding: v.Grant, Mentioned: true,
		Candidates: v.Candidates, Limited: limited, Full: make(map[string]bool), Unsure: make(map[string]bool),
	}
	for pool, line := range lines {
		s.Full[pool], s.Unsure[pool] = line.full(), line.unreachable
	}
	return s
}

// goesFirst is the other task that the device would be given before this one,
// had its pool room: of a pool that is tried before, or of its own pool the one
// that the semaphore says is first (0: it did not say); nil: none. A task that
// cannot start anyway waits for no other.
func goesFirst(s Situation, c store.Candidate, first int64) *store.Candidate {
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
		if o.Task == first && first != c.Task || first == 0 && sooner(o, c) {
			return &o
		}
	}
	return nil
}

// sooner is the order inside of a batch.
func sooner(a, b store.Candidate) bool {
	return a.Batch == b.Batch && cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Task, b.Task)) < 0
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
