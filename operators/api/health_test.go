package api_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/fleetslots/dispatcher/internal/test/must"
	rig "github.com/fleetslots/dispatcher/internal/test/rig"
	"github.com/fleetslots/dispatcher/operators/api"
	"github.com/fleetslots/dispatcher/store"
)

func TestReadinessIsThatOfTheRequiredChecks(t *testing.T) {
	t.Parallel()
	const ready = `{"checks":{"postgres":"ok","redis":"ok"},"status":"ready"}`
	runOnServers(t, func(b *testAPI) {
		expect := func(status int, body string) {
			b.Helper()
			a := b.Call("GET", "/readyz", "", nil).Expect(status)
			if got := strings.TrimSpace(string(a.Body)); got != body || a.Header.Get("Content-Type") != "application/json" {
				b.Errorf("readyz says %s, want %s", got, body)
			}
			b.Call("GET", "/healthz", "", nil).Expect(200)
		}
		expect(200, ready)
		b.Must(b.Redis.Close())
		expect(200, `{"checks":{"postgres":"ok","redis":"degraded"},"status":"ready"}`)
		b.Must(b.store.Close())
		expect(503, `{"checks":{"postgres":"failed","redis":"degraded"},"status":"not ready"}`)
	})
}

func TestWhatStopsIsNotReady(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.Call("GET", "/readyz", "", nil).Expect(200)
	b.API.FailReadiness()
	if a := b.Call("GET", "/readyz", "", nil).Expect(503); !strings.Contains(string(a.Body), `"status":"stopping"`) {
		t.Errorf("%s", a.Body)
	}
	if text := string(b.Call("GET", "/metrics", "", nil).Expect(200).Body); !strings.Contains(text, "dispatcher_ready 0\n") {
		t.Errorf("%s", text)
	}
	b.Call("GET", "/healthz", "", nil).Expect(200)
	b.SendReport("d", `{}`).Expect(200) // reports are still answered
}

// TestHangingCheckFails checks a health check that hangs: the checks run concurrently, each with a deadline, so it
// fails and delays no other check.
func TestHangingCheckFails(t *testing.T) {
	t.Parallel()
	hang := func(ctx context.Context) error {
		<-ctx.Done()
		return errors.Join(errors.New("timed out"), ctx.Err())
	}
	b := startEmbedded(t, func(s *rig.Options) {
		s.API.Checks = []api.Check{{Name: "a", Required: true, Address: "a.example:1", Probe: hang}, {Name: "b", Probe: hang}, {Name: "c", Probe: func(context.Context) error { return api.ErrOff }}}
	})
	if a := b.Call("GET", "/readyz", "", nil).Expect(503); !strings.Contains(string(a.Body), `{"a":"failed","b":"degraded","c":"ok"}`) {
		t.Errorf("%s", a.Body)
	}
	if shown := b.API.Dependencies(t.Context()); len(shown) != 3 || shown[0].Address != "a.example:1" || shown[0].Error == "" || shown[0].Off || !shown[2].Off || shown[2].Error != "" {
		t.Errorf("dependencies %+v", shown)
	}
}

// The disk of the ledger is full. /readyz names the full disk, and so does the problem of a request that failed for
// this reason.
func TestAFullDiskIsNamed(t *testing.T) {
	t.Parallel()
	full := fmt.Errorf("writing: %w", store.ErrDiskFull)
	b := startEmbedded(t, func(s *rig.Options) {
		s.API.Checks = []api.Check{{Name: "postgres", Required: true, Probe: func(context.Context) error { return full }}}
		s.API.Store = fullDiskStore{s.API.Store, full}
	})
	if a := b.Call("GET", "/readyz", "", nil).Expect(503); !strings.Contains(string(a.Body), `"reasons":{"postgres":"the disk of the ledger is full"}`) {
		t.Errorf("%s", a.Body)
	}
	b.Call("POST", "/v1/batches", adminToken, `{"pool":"p","devices":["d"]}`).ExpectProblem(503, "unavailable", "the disk of the ledger is full", "free space")
}

// fullDiskStore is a ledger whose disk is full.
type fullDiskStore struct {
	api.Store
	err error
}

func (n fullDiskStore) CreateBatch(context.Context, string, store.Batch, store.NewBatchTasks) (store.Batch, error) {
	return store.Batch{}, n.err
}

// TestMetricsSayWhatReadyzSays checks that the metrics and /readyz report the same state, even if a health check
// ignores its deadline.
func TestMetricsSayWhatReadyzSays(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	t.Cleanup(func() { close(hold) })
	var failing, hanging atomic.Bool
	b := startEmbedded(t, func(s *rig.Options) {
		s.API.Checks = []api.Check{{Name: "a", Required: true, Probe: func(context.Context) error {
			if hanging.Load() {
				<-hold
			}
			return nil
		}}, {Name: "b", Probe: func(context.Context) error {
			if failing.Load() {
				return errors.New("no")
			}
			return nil
		}}}
	})
	expect := func(what string, want ...string) {
		t.Helper()
		var text string
		b.Await(fmt.Sprintf("%s: %q", what, want), func() bool {
			text = string(b.Call("GET", "/metrics", "", nil).Expect(200).Body)
			return !slices.ContainsFunc(want, func(line string) bool { return !strings.Contains(text, line+"\n") })
		}, &text)
	}
	expect("all well", `dispatcher_ready 1`, `dispatcher_dependency_up{dependency="a"} 1`, `dispatcher_dependency_up{dependency="b"} 1`)
	failing.Store(true)
	expect("b fails", `dispatcher_ready 1`, `dispatcher_dependency_up{dependency="a"} 1`, `dispatcher_dependency_up{dependency="b"} 0`)
	hanging.Store(true)
	expect("a hangs", `dispatcher_ready 0`)
}

func TestMetricsAreNamedAsPromised(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":1}`)
	b.CreateBatch(`{"pool":"p","devices":["dev-secret-1","dev-secret-2"]}`)
	g := b.ReportUntilGranted("dev-secret-1")
	b.SendReport("dev-secret-2", `{"id":"x"}`).Expect(200) // the pool is full
	b.SendReport("dev-secret-1", g.Result("succeeded", "")).Expect(200)
	b.SendReport("dev-secret-2", `{`).Expect(400)
	b.Call("POST", "/v1/devices/dev-secret-1/report", "garbage", nil).Expect(401)
	_, err := b.Dispatcher.Upkeep.Reconcile(t.Context())
	must.Succeed(t, err)
	text := string(b.Call("GET", "/metrics", "", nil).Expect(200).Body)
	for _, want := range []string{
		`dispatcher_slot_grants_total{pool="p"} 1`,
		`dispatcher_slot_denials_total{pool="p",reason="full"} 1`,
		`dispatcher_slot_hold_duration_seconds_count{outcome="succeeded",pool="p"} 1`,
		`dispatcher_task_wait_duration_seconds_count{pool="p"} 1`,
		`dispatcher_results_total{outcome="recorded"} 1`,
		`dispatcher_reports_total{reason="granted",transport="http"} 1`,
		`dispatcher_reports_total{reason="full",transport="http"} 1`,
		`dispatcher_reports_total{reason="declined",transport="http"} 1`,
		`dispatcher_reports_total{reason="invalid_json",transport="http"} 1`,
		`dispatcher_reports_total{reason="unauthenticated",transport="http"} 1`,
		`dispatcher_report_duration_seconds_count{transport="http"} 5`,
		`dispatcher_slot_drift{pool="p"} 0`,
		`dispatcher_slot_conflicts_total{pool="p"} 0`,
		`dispatcher_reaper_last_success_timestamp_seconds 0`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("missing: %s", want)
		}
	}
	if strings.Contains(text, "dev-secret") {
		t.Error("a label carries a device id")
	}
	faults, err := promlint.New(strings.NewReader(text)).Lint()
	b.Must(err)
	for _, fault := range faults {
		t.Errorf("%s: %s", fault.Metric, fault.Text)
	}
}
