package app

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/await"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// TestALongPollIsGrantedANewTaskAtOnce creates a task for a device whose report is parked. The task must be granted before
// the pass "last-seen" runs, even if the device sent a report without Prefer to any replica just before the parked one.
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

// testReplica is a running replica. The test can start its passes.
type testReplica struct {
	*instance
	app *App
}

func newTestReplica(t *testing.T, config Config) testReplica {
	t.Helper()
	i, a := startServing(t, config)
	return testReplica{i, a}
}

// expectSoonGranted checks several devices at two replicas. The replica in one receives their results and creates
// their batches, and the replica in other parks their reports. Each new task must soon be granted. A device proves nothing
// if the pass "last-seen" ran between its report and its grant, which happens on a slow machine.
func expectSoonGranted(t *testing.T, one, other testReplica) {
	t.Helper()
	one.callOperator(t, http.MethodPut, "/v1/pools/p", `{"capacity":10}`)
	other.flushReached(t) // after this, the other replica knows the pool
	passes := func() int {
		return one.findPass(t, "last-seen").startedRuns() + other.findPass(t, "last-seen").startedRuns()
	}
	for n, granted := 0, 0; granted < 2; n++ {
		if n == 6 {
			t.Fatalf("%d of %d tasks were granted without the pass last-seen", granted, n)
		}
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
		before := passes()
		one.createBatch(t, device)
		if reply := <-second; reply.Task == nil {
			t.Fatalf("%s: %+v, want a grant", device, reply)
		}
		if passes() == before {
			granted++
		}
	}
}

// createBatch queues one task for the device at this replica.
func (r testReplica) createBatch(t *testing.T, device string) {
	t.Helper()
	r.callOperator(t, http.MethodPost, "/v1/batches", fmt.Sprintf(`{"pool":"p","kind":"k","devices":[%q]}`, device))
}

// sendResult sends the result of a task to this replica, in a report without Prefer.
func (r testReplica) sendResult(t *testing.T, device string, task *devices.Task) {
	t.Helper()
	reply := r.sendReport(t, device, fmt.Sprintf(`{"id":"done","results":[{"task":%d,"token":%d,"status":"succeeded"}]}`, task.ID, task.Token))
	if reply.Reason != devices.ReasonNone || len(reply.Acks) != 1 {
		t.Fatalf("%s: %+v, want the result recorded and no task", device, reply)
	}
}

// flushReached waits for a complete run of the pass "reached" that began after this call.
func (r testReplica) flushReached(t *testing.T) {
	t.Helper()
	reached := r.findPass(t, "reached")
	want := reached.startedRuns() + 2
	await.True(t, "two runs of the pass reached", func() bool { return reached.startedRuns() >= want && !reached.isRunning() })
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

// startedRuns returns how many runs of this pass have been started.
func (o *pass) startedRuns() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.runCount
}
