package dispatcher_test

import (
	"container/heap"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/internal/testbackends"
	"github.com/fleetslots/dispatcher/internal/testservers"
)

// A steady run at the pace of the field, on a clock of its own: more devices
// than places, each with its next task, holding for 10 to 30 s. Of the estimates
// that tasks are given when their device first asks, nine in ten say more than
// half of the wait and less than twice of it.
func TestEstimatedStart(t *testing.T) {
	t.Parallel()
	if os.Getenv("ESTIMATES") == "" {
		t.Skip("takes minutes under the race detector: ESTIMATES=1 go test ./dispatcher -run TestEstimatedStart -v")
	}
	const places, fleet, rounds, starts, least = 40, 80, 30, 350, 5
	run := newSteadyRun(t)
	run.pool("a", places, time.Hour)
	var all []string
	for range rounds {
		for i := range fleet {
			all = append(all, fmt.Sprintf("d%02d", i))
		}
	}
	run.batch("a", nil, all...)
	for i := range fleet {
		d := &simulated{name: all[i], tasks: run.tasksOf(all[i]), body: `{"id":"x"}`, at: run.now.Add(time.Duration(run.random.Int64N(int64(30 * time.Second))))}
		heap.Push(&run.queue, d)
	}
	for run.starts < starts {
		run.step()
	}
	t.Logf("%d of %d estimates within twice the wait, %d times none was given", run.good, run.judged, run.unknown)
	// Two more: of so few waits, nine in ten may well be less.
	if run.judged < least || 10*(run.good+2) < 9*run.judged {
		t.Errorf("%d of %d estimates good, want 9 of 10, of %d at least", run.good, run.judged, least)
	}
}

type steadyRun struct {
	*bench
	redis  *miniredis.Miniredis
	ledger *sql.DB
	now    time.Time // of devices, replica and Redis
	queue  agenda
	random *rand.Rand

	starts, good, judged, unknown int
}

func newSteadyRun(t *testing.T) *steadyRun {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ledger.db")
	r := &steadyRun{redis: miniredis.RunT(t), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), random: rand.New(rand.NewPCG(1, 2))}
	r.bench = newBench(t, testbackends.SQLite(t, path), testservers.RedisAt{Addr: r.redis.Addr()}, func(c *dispatcher.Config) {
		c.Now = func() time.Time { return r.now }
		c.Jitter = r.random.Float64
	})
	var err error
	if r.ledger, err = sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(60000)"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.ledger.Close() })
	return r
}

// simulated is a device that does as it is told.
type simulated struct {
	name  string
	tasks []int64
	at    time.Time // when it reports next
	body  string    // what it says then
	held  time.Duration
	runs  int64 // its task

	asked time.Time     // when it first asked for its next task in vain; zero: it did not
	said  time.Duration // how long that was to take; 0: not said
}

// step lets the next device report.
func (r *steadyRun) step() {
	d, _ := heap.Pop(&r.queue).(*simulated)
	r.now = d.at
	r.redis.SetTime(r.now)
	if d.runs != 0 { // the ledger's clock is another one
		_, err := r.ledger.ExecContext(r.ctx, `UPDATE grants SET granted_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) - $1 WHERE task = $2`, d.held.Milliseconds(), d.runs)
		r.must(err)
		d.runs = 0
	}
	reply := r.report(d.name, d.body)
	d.body, d.at = `{"id":"x"}`, r.now.Add(time.Duration(reply.ReportAfterMS)*time.Millisecond)
	switch {
	case reply.Task != nil:
		r.started(d)
		d.tasks = d.tasks[1:]
		d.runs, d.held = reply.Task.ID, 10*time.Second+time.Duration(r.random.Int64N(int64(20*time.Second)))
		d.body, d.at = result(*reply.Task, "succeeded", ""), r.now.Add(d.held)
	case reply.Reason != devices.ReasonFull:
		r.t.Fatalf("%s: %+v", d.name, reply)
	case d.asked.IsZero():
		r.first(d)
	}
	heap.Push(&r.queue, d)
}

// first notes what is said of the next task of a device.
func (r *steadyRun) first(d *simulated) {
	d.asked, d.said = r.now, 0
	why := r.why(d.tasks[0])
	if start := why.Reasons[0].EstimatedStart; !start.IsZero() {
		d.said = start.Sub(why.At)
	}
}

// started compares.
func (r *steadyRun) started(d *simulated) {
	r.starts++
	if d.asked.IsZero() {
		return
	}
	was := r.now.Sub(d.asked)
	d.asked = time.Time{}
	if d.said == 0 {
		r.unknown++
		return
	}
	r.judged++
	if d.said < 2*was && was < 2*d.said {
		r.good++
	} else {
		r.t.Logf("%s: said %s, was %s", d.name, d.said, was)
	}
}

// agenda has the device first that reports next.
type agenda []*simulated

func (a agenda) Len() int           { return len(a) }
func (a agenda) Less(i, j int) bool { return a[i].at.Before(a[j].at) }
func (a agenda) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }

// Push is part of heap.Interface.
func (a *agenda) Push(x any) {
	if d, ok := x.(*simulated); ok {
		*a = append(*a, d)
	}
}

// Pop is part of heap.Interface.
func (a *agenda) Pop() any {
	last := len(*a) - 1
	d := (*a)[last]
	*a = (*a)[:last]
	return d
}
