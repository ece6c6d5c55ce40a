package app

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// grantLimit is the longest time between the answer to a batch and the grant of its task to
// a parked report. It is far below the 10 s between two runs of the pass "last-seen".
const grantLimit = 3 * time.Second

// TestALongPollIsGrantedANewTaskAtOnce checks that a new task for the device of a parked report is
// granted at once, even if a report without Prefer was sent to any replica just before the parked one.
func TestALongPollIsGrantedANewTaskAtOnce(t *testing.T) {
	t.Parallel()
	t.Run("dev", func(t *testing.T) {
		t.Parallel()
		i, d := startDev(t, t.TempDir())
		expectSoonGranted(t, testReplica{i, d.app}, testReplica{i, d.app})
	})
	t.Run("serve", func(t *testing.T) {
		t.Parallel()
		one := newTestReplica(t, serveConfig(t, sharedPostgres.NewLedger(t), servers.StartRedis(t).URL()))
		expectSoonGranted(t, one, one)
	})
	t.Run("two replicas", func(t *testing.T) {
		t.Parallel()
		config := serveConfig(t, sharedPostgres.NewLedger(t), servers.StartRedis(t).URL())
		expectSoonGranted(t, newTestReplica(t, config), newTestReplica(t, config))
	})
}

// testReplica is a running replica and the access to its passes.
type testReplica struct {
	*instance
	app *App
}

func newTestReplica(t *testing.T, config Config) testReplica {
	t.Helper()
	i, a := startServing(t, config)
	return testReplica{i, a}
}

// expectSoonGranted runs the exchange with several devices: the replica one receives the results and
// creates the batches, the replica other parks the reports.
func expectSoonGranted(t *testing.T, one, other testReplica) {
	t.Helper()
	one.callOperator(t, http.MethodPut, "/v1/pools/p", `{"capacity":10}`)
	other.flushReached(t) // after this, the other replica knows the pool
	for n := range 2 {
		device := fmt.Sprint("d", n)
		first := other.startLongPoll(t, device)
		other.waitForParked(t, "1")
		other.flushReached(t)
		one.createBatch(t, device)
		task := (<-first).Task
		if task == nil {
			t.Fatal("no first grant")
		}
		one.sendResult(t, device, task)
		second := other.startLongPoll(t, device)
		other.waitForParked(t, "1")
		one.flushReached(t)
		other.flushReached(t)
		one.createBatch(t, device)
		answered := time.Now()
		reply := <-second
		took := time.Since(answered)
		t.Logf("%s: granted %s after the answer to the batch", device, took.Round(time.Millisecond))
		if reply.Task == nil || took > grantLimit {
			t.Errorf("%s: %+v after %s, want a grant within %s", device, reply, took, grantLimit)
		}
	}
}

// createBatch creates a batch with one task.
func (r testReplica) createBatch(t *testing.T, device string) {
	t.Helper()
	r.callOperator(t, http.MethodPost, "/v1/batches", fmt.Sprintf(`{"pool":"p","kind":"k","devices":[%q]}`, device))
}

// sendResult sends a result in a report without Prefer.
func (r testReplica) sendResult(t *testing.T, device string, task *devices.Task) {
	t.Helper()
	reply := r.sendReport(t, device, fmt.Sprintf(`{"id":"done","results":[{"task":%d,"token":%d,"status":"succeeded"}]}`, task.ID, task.Token))
	if reply.Reason != devices.ReasonNone || len(reply.Acks) != 1 {
		t.Fatalf("%s: %+v, want the result recorded and no task", device, reply)
	}
}

// flushReached waits until a run of the pass "reached" that began after the call has ended.
func (r testReplica) flushReached(t *testing.T) {
	t.Helper()
	reached := r.findPass(t, "reached")
	want := reached.startedRuns() + 2
	eventually(t, "two runs of the pass reached", func() bool { return reached.startedRuns() >= want && !reached.isRunning() })
}

func (r testReplica) findPass(t *testing.T, name string) *pass {
	t.Helper()
	for _, p := range r.app.passes.all {
		if p.name == name {
			return p
		}
	}
	t.Fatalf("there is no pass %s", name)
	return nil
}

// startedRuns returns how many runs of a pass have been started.
func (o *pass) startedRuns() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.runCount
}
