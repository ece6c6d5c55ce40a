package e2e

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/simulator"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// TestRollingRestartLosesNothing ends the replicas with SIGTERM, one after the other, while a fleet works over both
// transports. Each replica must end with status 0, and no task or result may be lost.
func TestRollingRestartLosesNothing(t *testing.T) {
	t.Parallel()
	x := newExperiment(t, &verdict{})
	x.fleet.Devices, x.fleet.Capacity, x.fleet.Tasks, x.fleet.Lease = 40, 10, 120, time.Minute
	x.fleet.LongShare, x.fleet.Faults = 0, simulator.Faults{}
	x.settings = nil
	x.deploy()
	ctx, cancel := context.WithTimeout(t.Context(), runLimit)
	defer cancel()
	simulation := x.simulate(ctx)
	for _, n := range []int{0, 1} {
		if err := poll(simulation.ctx, ledgerPause, func() bool {
			held, err := x.heldCount(ctx)
			return err == nil && held >= x.fleet.Capacity/2
		}); err != nil {
			t.Fatalf("the run does not count: %v", err)
		}
		r, begin := x.replicas[n], time.Now()
		r.stopCleanly(t)
		t.Logf("replica %d ended after %s", n, time.Since(begin).Round(time.Millisecond))
		r.Start()
	}
	<-simulation.ctx.Done()
	if err := errors.Join(simulation.err, simulation.summary.Err()); err != nil {
		t.Error(err)
	}
	if simulation.summary.External.Arrivals == 0 {
		t.Error("nobody was ever inside")
	}
	for _, r := range x.replicas {
		r.stopCleanly(t)
	}
}

// TestEndTakesTheGraceLimitAtMost checks a replica that is stopped while Postgres does not answer to one of its
// reports. The report delays the end of the replica by the grace limit at most. After a second signal, it does not
// delay the end.
func TestEndTakesTheGraceLimitAtMost(t *testing.T) {
	t.Parallel()
	for name, signals := range map[string]int{"the limit": 1, "a second signal": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := startHangingReplica(t)
			begin := time.Now()
			for range signals {
				r.Signal(syscall.SIGTERM)
				waitUntilClosed(t, r.addr) // the replica has received the first signal
			}
			await.Receive(t, r.Exited(), "goes on")
			t.Logf("ended after %s", time.Since(begin).Round(time.Millisecond))
			if code := r.ExitCode(); code != 1 {
				t.Errorf("status %d, want 1", code)
			}
			if said := strings.Contains(r.Output(), "1 unanswered requests"); said != (signals == 1) {
				t.Errorf("said what was left: %t\n%s", said, r.Output())
			}
		})
	}
}

// startHangingReplica returns a replica with one report in flight to which Postgres does not answer. Postgres
// answers all other requests.
func startHangingReplica(t *testing.T) *replica {
	t.Helper()
	server := servers.StartPostgres(t)
	proxy := servers.NewProxy(t, server.Addr())
	underway := make(chan struct{})
	var once sync.Once
	proxy.HoldRepliesAfter("slow-device") // if Postgres did not answer at all, the replica would detect that
	proxy.OnRequest(func(b []byte) {
		if bytes.Contains(b, []byte("slow-device")) {
			once.Do(func() { close(underway) })
		}
	})
	r := startReplica(t, strings.ReplaceAll(server.NewDatabase(t), server.Addr(), proxy.Addr), servers.StartRedis(t).URL())
	request, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodPost,
		"http://"+r.addr+"/v1/devices/slow-device/report", strings.NewReader(`{}`))
	must.Succeed(t, err)
	request.Header.Set("Authorization", "Bearer "+fleetToken)
	cut := make(chan struct{})
	go func() {
		defer close(cut)
		if response, err := http.DefaultClient.Do(request); err == nil { // an error is expected: the connection breaks at the kill
			_ = response.Body.Close()
		}
	}()
	t.Cleanup(func() {
		r.Kill()
		<-cut
	})
	await.Receive(t, underway, "the report never came to Postgres")
	return r
}

func waitUntilClosed(t *testing.T, addr string) {
	t.Helper()
	await.True(t, "the listener closed", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
}
