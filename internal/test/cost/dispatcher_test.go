package cost

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/devices/hawkbit"
	devicehttp "github.com/fleetslots/dispatcher/devices/http"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/marks"
	"github.com/fleetslots/dispatcher/dispatcher/policies"
	"github.com/fleetslots/dispatcher/dispatcher/seen"
	backends "github.com/fleetslots/dispatcher/internal/test/backends"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

const fleetToken = "fleet-token-of-the-tests"

// testDispatcher is a dispatcher behind the HTTP handler of reports. Its servers are used by this test only.
type testDispatcher struct {
	t          *testing.T
	handler    http.Handler
	header     http.Header
	dispatcher *dispatcher.Dispatcher
	store      *store.Store
	redis      redis.UniversalClient
	ledger     *countedDatabase
	callCounts strings.Builder // the counts by statement and command

	actionReads int // reads of DDI actions, which the figures do not contain
}

func newTestDispatcher(t *testing.T) *testDispatcher {
	t.Helper()
	p := &testDispatcher{t: t, ledger: newCountedDatabase(t), header: http.Header{"Authorization": {"Bearer " + fleetToken}}}
	p.store = backends.OpenPostgres(t, p.ledger.dsn)
	p.redis = backends.OpenRedis(t, servers.RedisAt{Addr: servers.StartRedis(t).Addr}).Client
	began := time.Now()
	p.dispatcher = dispatcher.New(dispatcher.Config{
		Store: p.store, Semaphore: slots.New(p.redis), Limits: policies.NewLimits(limits.New(p.redis)), Recent: seen.NewList(p.redis), Marks: marks.NewHashes(p.redis),
		LeaseMargin: 10 * time.Second, FleetTokens: []string{fleetToken},
		Now: func() time.Time { return began }, Jitter: func() float64 { return 0.5 },
	})
	t.Cleanup(func() { _ = p.dispatcher.Waiters.Stop(context.Background()) })
	p.store.OnNews(p.dispatcher.Marks.FollowCommit)
	reports := devicehttp.New(devicehttp.Options{Handler: p.dispatcher, OnRefused: func(*http.Request, string, error) {}, Logger: slog.New(slog.DiscardHandler)})
	mux := http.NewServeMux()
	mux.Handle("POST /v1/devices/{device}/report", reports)
	hawkbit.New(hawkbit.Options{Intake: reports.Intake, Ledger: p, Tenant: "DEFAULT", AllowGateway: true}).Register(mux)
	p.handler = mux
	p.runStartPasses()
	return p
}

// runStartPasses reads the time and the pools, as the passes do when a replica starts.
func (p *testDispatcher) runStartPasses() {
	p.t.Helper()
	_, err := p.dispatcher.Upkeep.Reap(p.t.Context())
	must.Succeed(p.t, err)
	_, err = p.dispatcher.Upkeep.Reconcile(p.t.Context())
	must.Succeed(p.t, err)
	must.Succeed(p.t, p.dispatcher.Marks.FollowNews(p.t.Context()))
}

// warmUp makes the ledger plan its statements and makes Redis load its scripts, so that this is not counted.
func (p *testDispatcher) warmUp() {
	p.t.Helper()
	p.createPool("warm")
	some := numberedNames("warm", 30)
	p.createBatch("warm", some)
	for _, device := range some {
		p.sendFirstReport(device)
		p.runCycle(device)
		p.reportIdle(device)
	}
}

func (p *testDispatcher) createPool(name string) {
	p.t.Helper()
	_, _, err := p.store.PutPool(p.t.Context(), "test", name, store.PoolSpec{Capacity: 60, Lease: time.Minute})
	must.Succeed(p.t, err)
	p.runStartPasses()
}

func (p *testDispatcher) createBatch(pool string, names []string) {
	p.t.Helper()
	in := store.Batch{
		Pool: pool, Kind: "speedtest", Payload: json.RawMessage(`{"server":"st1"}`), Weight: 1,
		IsDeployment: true, MaxAttempts: 3, RetryOn: []string{"failed", "timed_out"}, OnLost: "retry",
	}
	_, err := p.store.CreateBatch(p.t.Context(), "test", in, store.NewBatchTasks{Tasks: func(yield func(store.NewTask, error) bool) {
		for _, device := range names {
			if !yield(store.NewTask{Device: device}, nil) {
				return
			}
		}
	}})
	must.Succeed(p.t, err)
}

func (p *testDispatcher) sendReport(device, body string) (reply []byte) {
	p.t.Helper()
	request, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, "/v1/devices/"+device+"/report", strings.NewReader(body))
	must.Succeed(p.t, err)
	request.Header = p.header
	answer := httptest.ResponseRecorder{Body: new(bytes.Buffer)}
	p.handler.ServeHTTP(&answer, request)
	if answer.Code != http.StatusOK {
		p.t.Fatalf("%s reported %s: %d %s", device, body, answer.Code, answer.Body)
	}
	return answer.Body.Bytes()
}

// sendFirstReport sends the first report of a device, which asks for no task.
func (p *testDispatcher) sendFirstReport(device string) {
	p.t.Helper()
	p.sendReport(device, `{"accept":false}`)
}

// reportIdle sends a report of a device that has nothing to do.
func (p *testDispatcher) reportIdle(device string) {
	p.t.Helper()
	if reply := p.sendReport(device, `{"id":"i"}`); !bytes.Contains(reply, []byte(`"reason":"none"`)) {
		p.t.Fatalf("%s: %s, want none", device, reply)
	}
}

// fillPool creates a pool whose only slot is held, and for which the devices wait. Each device has reported once.
func (p *testDispatcher) fillPool(pool string, waiting []string) {
	p.t.Helper()
	_, _, err := p.store.PutPool(p.t.Context(), "test", pool, store.PoolSpec{Capacity: 1, Lease: time.Minute})
	must.Succeed(p.t, err)
	p.runStartPasses()
	p.createBatch(pool, append([]string{"holder"}, waiting...))
	if reply := p.sendReport("holder", `{"id":"g"}`); !bytes.Contains(reply, []byte(`"task":{`)) {
		p.t.Fatalf("%s, want a task", reply)
	}
	for _, device := range waiting {
		p.reportWaiting(device)
	}
}

// reportWaiting sends a report of a device that waits for a slot.
func (p *testDispatcher) reportWaiting(device string) {
	p.t.Helper()
	if reply := p.sendReport(device, `{"id":"w"}`); !bytes.Contains(reply, []byte(`"reason":"full"`)) {
		p.t.Fatalf("%s: %s, want full", device, reply)
	}
}

// runCycle runs one cycle of the device: a report gets a grant, and a second report sends the result.
func (p *testDispatcher) runCycle(device string) {
	p.t.Helper()
	var granted struct{ Task struct{ ID, Token int64 } }
	reply := p.sendReport(device, `{"id":"g"}`)
	if err := json.Unmarshal(reply, &granted); err != nil || granted.Task.ID == 0 {
		p.t.Fatalf("%s: %s, want a task (%v)", device, reply, err)
	}
	reply = p.sendReport(device, fmt.Sprintf(`{"id":"r","results":[{"task":%d,"token":%d,"status":"succeeded"}],"accept":false}`, granted.Task.ID, granted.Task.Token))
	if !bytes.Contains(reply, []byte(`"outcome":"recorded"`)) {
		p.t.Fatalf("%s: %s, want the result recorded", device, reply)
	}
}

// pollDDI sends a poll of a device that speaks hawkBit's DDI. The answer must have no link to a task.
func (p *testDispatcher) pollDDI(device string) {
	p.t.Helper()
	request := httptest.NewRequest(http.MethodGet, "/DEFAULT/controller/v1/"+device, nil)
	request.Header.Set("Authorization", "GatewayToken "+fleetToken)
	response := httptest.NewRecorder()
	p.handler.ServeHTTP(response, request)
	if body := response.Body.String(); response.Code != http.StatusOK || strings.Contains(body, "deploymentBase") {
		p.t.Fatalf("poll of %s: %d %s", device, response.Code, body)
	}
}

// The methods of hawkbit.Ledger count the reads of actions: a poll of a device that waits or has nothing to do must need none.

// Action implements hawkbit.Ledger.
func (p *testDispatcher) Action(context.Context, devices.ID) (hawkbit.Action, error) {
	p.actionReads++
	return hawkbit.Action{}, nil
}

// UpdateAction implements hawkbit.Ledger.
func (p *testDispatcher) UpdateAction(context.Context, devices.ID, int64, int64) (hawkbit.Action, bool, error) {
	p.actionReads++
	return hawkbit.Action{}, false, nil
}

// EndAction implements hawkbit.Ledger.
func (p *testDispatcher) EndAction(context.Context, devices.ID, int64, bool) error { return nil }

// RecordAttributes implements hawkbit.Ledger.
func (p *testDispatcher) RecordAttributes(context.Context, devices.ID) error { return nil }

// WithdrawCancel implements hawkbit.Ledger.
func (p *testDispatcher) WithdrawCancel(context.Context, int64, int64) error { return nil }
