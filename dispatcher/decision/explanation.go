package decision

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// Explanation says where a task stands and why.
type Explanation struct {
	At     time.Time // by the ledger's clock
	State  store.TaskState
	Causes []Cause // at least one; what the device is told first
	Mark   *Mark   // of the device; nil: unknown
}

// Mark is the mark of a device, beside the truth.
type Mark struct {
	Present  bool // the device has a mark of work
	Believed bool // if it had none, it would be told that there is nothing to do
	Work     bool // the ledger has an open task of it
}

// Cause is one thing that keeps a task where it is.
type Cause struct {
	Code           Code
	Detail         string    // for people
	Until          time.Time // when it may end by itself; zero: unknown
	Position       int       // in the queue of its pool, 1 is next; 0: unknown, or in no queue
	EstimatedStart time.Time // zero: cannot be known
	Remedy         string    // what would change it, for people
	Actions        []Action  // of the remedy, in its order; none: nothing can be done, or not by one command
	Policy         string    // of CodeLimited: what the policy that says no allows, and its name
}

// Standing is how full a pool is, and where a device stands in its queue.
type Standing struct {
	Held, Capacity int
	Left           int           // slots that are neither held nor offered
	Unreachable    bool          // the semaphore did not say
	Position       int           // of the task that is explained: so many grants until its turn; 0: unknown
	First          int64         // of the device's tasks that could start: the one that comes first; 0: unknown
	InQueue        bool          // the device stands there
	Due            time.Duration // then: until it was told to ask again; negative: overdue
	Offered        time.Duration // how long a slot stays reserved for the device; 0: none is
	Waiting        int           // devices in the queue
	Lane           Lane
}

// Lane is what the urgent batches of a pool have together.
type Lane struct {
	Held    int // slots that they hold or are offered
	Room    int // slots for which they still go before all others; may be negative
	Waiting int // devices that wait with a task of them
}

// full says that there is no slot for the device: none is free, or only for
// those that it was offered to.
func (s Standing) full() bool { return !s.Unreachable && s.Left < 1 && s.Offered == 0 }

// Known is what is known of a waiting task beside the ledger's view of it.
type Known struct {
	Standings map[string]Standing // of each pool in which a task of its device could start, and of its own
	Limited   map[int64]Obstacle  // by task: what its policies say against it now
	Seen      time.Time           // when the device last reported; zero: never
	Period    time.Duration       // in which an idle device reports
	Hold      time.Duration       // for which a grant of the task's pool is usually held; 0: unknown
	Callers   *store.Callers      // how their bound stands to the task; nil: it is a device's
}

// Explain tells of a task: ended, running, or all that stands between it and its
// start, judged as reports are. known is asked only for a task that waits.
func Explain(v store.TaskView, known func(waiting store.Candidate) Known) Explanation {
	e := Explanation{At: v.Now, State: v.Task.State}
	open := slices.IndexFunc(v.Candidates, func(c store.Candidate) bool { return c.Task == v.Task.ID })
	switch {
	case v.Running != nil:
		e.Causes = whyRunning(v)
	case v.Task.State != store.Pending:
		e.Causes = whyEnded(v)
	case open < 0:
		e.Causes = []Cause{whyClosed(v)}
	default:
		e.Causes = whyWaiting(v, v.Candidates[open], known(v.Candidates[open]))
	}
	return e
}

// whyWaiting tells what stands in the way of a task that waits; then whether
// its device is there to ask for it.
func whyWaiting(v store.TaskView, c store.Candidate, k Known) []Cause {
	s := Foreseen(v.View, k.Limited)
	s.Full, s.Unsure, s.Callers = make(map[string]bool), make(map[string]bool), k.Callers
	for pool, standing := range k.Standings {
		s.Full[pool], s.Unsure[pool] = standing.full(), standing.Unreachable
	}
	x := explainer{TaskView: v, standing: k.Standings[c.Pool], candidate: c, seen: k.Seen, period: k.Period}
	x.turn = k.Hold * time.Duration(x.standing.Position) / time.Duration(max(x.standing.Capacity, 1))
	if k.Callers != nil {
		x.callers = *k.Callers
	}
	var causes []Cause
	if v.Device != nil && v.Device.Revoked() {
		causes = append(causes, x.revoked())
	}
	obstacles := s.obstaclesOf(c)
	if len(causes)+len(obstacles) > 1 { // it is not its turn that the task waits for
		x.standing.Position = 0
	}
	for _, o := range obstacles {
		r := o.says(x, o)
		r.Code, r.Until = o.Code, o.Until
		causes = append(causes, r)
	}
	if other := goesFirst(s, c, x.standing.First); other != nil {
		causes = append(causes, x.otherFirst(*other))
	}
	if away, is := x.away(); is {
		causes = append(causes, away)
	}
	switch {
	case len(causes) == 0:
		causes = append(causes, x.nextReport())
	case len(causes) == 1 && causes[0].Code == CodeFull: // nothing but the queue is before it
		causes[0].EstimatedStart = x.start()
	}
	return causes
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
		if o.Task == first && first != c.Task || first == 0 && Sooner(o, c) {
			return &o
		}
	}
	return nil
}

// Sooner is the order inside of a batch.
func Sooner(a, b store.Candidate) bool {
	return a.Batch == b.Batch && cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Task, b.Task)) < 0
}
