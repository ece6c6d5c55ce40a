package web_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	devicehttp "github.com/fleetslots/dispatcher/devices/http"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/dispatcher/policies"
	"github.com/fleetslots/dispatcher/dispatcher/seen"
	backends "github.com/fleetslots/dispatcher/internal/test/backends"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/limits"
	"github.com/fleetslots/dispatcher/operators/api"
	"github.com/fleetslots/dispatcher/operators/gate"
	"github.com/fleetslots/dispatcher/operators/web"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

const (
	patience   = backends.LongTimeout
	adminToken = "admin-token-of-the-tests"
	fleetToken = "fleet-token-of-the-tests"
)

// The servers that all tests of this package share: one of each kind per test binary. TestMain ends them.
var (
	postgres servers.SharedPostgres //nolint:gochecknoglobals // see above
	cache    servers.SharedRedis    //nolint:gochecknoglobals // see above
	browser  chromium               //nolint:gochecknoglobals // see above
)

func TestMain(m *testing.M) {
	code := m.Run()
	postgres.Close()
	cache.Close()
	browser.Close()
	os.Exit(code) //nolint:forbidigo // TestMain's way to end
}

// countingStore is a ledger that counts what the dashboard reads from it.
type countingStore struct {
	*store.Store
	markReads, viewReads atomic.Int64
	snapshotReads        atomic.Int64 // pages that were read
	eventReads           atomic.Int64
	summarizedResults    atomic.Int64 // results that were summarized
	logFails             atomic.Bool  // the log cannot be read
	countPanics          atomic.Bool  // counting tasks panics
	countHangs           atomic.Bool  // counting tasks hangs
	waitingSamples       atomic.Int64 // evaluated samples of waiting tasks
	snapshotSamples      atomic.Int64 // samples that were evaluated inside the snapshot of a page
}

type inSnapshotKey struct{}

func (l *countingStore) InOneSnapshot(ctx context.Context, read func(ctx context.Context, at store.Snapshot) error) error {
	l.snapshotReads.Add(1)
	return l.Store.InOneSnapshot(ctx, func(ctx context.Context, at store.Snapshot) error {
		return read(context.WithValue(ctx, inSnapshotKey{}, true), at)
	})
}

func (l *countingStore) SampleWaiting(ctx context.Context, scope store.TaskScope, maxTasks int) (store.WaitingTasks, error) {
	l.waitingSamples.Add(1)
	if ctx.Value(inSnapshotKey{}) != nil {
		l.snapshotSamples.Add(1)
	}
	return l.Store.SampleWaiting(ctx, scope, maxTasks)
}

func (l *countingStore) TaskCounts(ctx context.Context, pool string, heldMax int) (store.TaskCounts, error) {
	if l.countPanics.Load() {
		panic("by the test")
	}
	if l.countHangs.Load() {
		<-ctx.Done()
	}
	return l.Store.TaskCounts(ctx, pool, heldMax)
}

func (l *countingStore) ReadEventPosition(ctx context.Context, sent int64) (store.EventPosition, error) {
	l.markReads.Add(1)
	if l.logFails.Load() {
		return store.EventPosition{}, errors.New("down by the test")
	}
	return l.Store.ReadEventPosition(ctx, sent)
}

func (l *countingStore) Events(ctx context.Context, f store.EventFilter) ([]store.Event, error) {
	l.eventReads.Add(1)
	return l.Store.Events(ctx, f)
}

func (l *countingStore) SampleResults(ctx context.Context, sample store.SampleSpec, each func(store.SampledResult)) error {
	return l.Store.SampleResults(ctx, sample, func(one store.SampledResult) { l.summarizedResults.Add(1); each(one) })
}

func (l *countingStore) PoolOverviews(ctx context.Context, after string, limit, waiting int) ([]store.PoolOverview, error) {
	l.viewReads.Add(1)
	return l.Store.PoolOverviews(ctx, after, limit, waiting)
}

// testReplica is a replica with its dashboard. Other replicas may use the same stores.
type testReplica struct {
	*testing.T
	store         *countingStore
	redis         servers.RedisAt
	dispatcher    *dispatcher.Dispatcher
	web           *web.Web
	server        *httptest.Server
	url           string
	visitorCookie http.Cookie // cookie for a request that has none; without a name, nobody is signed in
}

// startEmbedded starts a replica on the embedded stores (SQLite and the in-process Redis).
func startEmbedded(t *testing.T, changes ...func(*web.Options)) *testReplica {
	t.Helper()
	return startReplica(t, backends.OpenSQLite(t, filepath.Join(t.TempDir(), "ledger.db")), servers.InProcessRedis(t), changes...)
}

// startOnServers starts a replica on a Postgres database and a Redis that no other test uses.
func startOnServers(t *testing.T, changes ...func(*web.Options)) (b *testReplica, dsn string) {
	t.Helper()
	dsn = postgres.NewLedger(t)
	return startReplica(t, backends.OpenPostgres(t, dsn), cache.NewDatabase(t), changes...), dsn
}

func startReplica(t *testing.T, s *store.Store, at servers.RedisAt, changes ...func(*web.Options)) *testReplica {
	t.Helper()
	return startReplicaWith(t, s, at, func(*dispatcher.Config) {}, changes...)
}

// startReplicaWith starts a replica on the given stores. The function changeConfig changes the configuration of its
// dispatcher.
func startReplicaWith(t *testing.T, s *store.Store, at servers.RedisAt, changeConfig func(*dispatcher.Config), changes ...func(*web.Options)) *testReplica {
	t.Helper()
	client := backends.OpenRedis(t, at).Client
	b := &testReplica{T: t, store: &countingStore{Store: s}, redis: at}
	seen := seen.NewList(client)
	config := dispatcher.Config{
		Store: b.store, Semaphore: slots.New(client), Limits: policies.NewLimits(limits.New(client)), Recent: seen, LeaseMargin: 10 * time.Second, FleetTokens: []string{fleetToken}, FleetMode: credentials.FleetAny,
	}
	changeConfig(&config)
	b.dispatcher = dispatcher.New(config)
	o := web.Options{
		Gate:   gate.New(gate.Options{Log: slog.New(slog.DiscardHandler), Ledger: s}),
		Ledger: b.store, AdminToken: adminToken, ReportPeriod: 30 * time.Second, Logger: slog.New(slog.DiscardHandler),
		System: web.System{Mode: "dev", Version: "test"}, PageTimeout: patience,
	}
	for _, change := range changes {
		change(&o)
	}
	a := api.New(api.Options{
		Gate:       o.Gate,
		Dispatcher: b.dispatcher, Store: b.store, Recent: seen, AdminToken: adminToken, LeaseMin: time.Second, AnswerTimeout: patience, Metrics: prometheus.NewRegistry(), Version: "test",
		Logger: slog.New(slog.DiscardHandler), Reports: devicehttp.New(devicehttp.Options{Handler: b.dispatcher, OnRefused: o.Gate.CountReportRefusal, Logger: slog.New(slog.DiscardHandler)}),
	})
	o.API = a
	if o.System.Checks == nil {
		o.System.Checks = a.Dependencies
	}
	b.web = web.New(o)
	b.server = httptest.NewServer(b.signInVisitors(b.web.Handler(a.Handler())))
	b.url = b.server.URL
	t.Cleanup(func() {
		b.web.Stop()
		b.server.Close()
	})
	b.startPasses()
	return b
}

// signInVisitors makes each request without a cookie a request of a signed-in admin.
func (b *testReplica) signInVisitors(next http.Handler) http.Handler {
	b.Helper()
	secret, token := rand.Text(), sha256.Sum256([]byte(adminToken))
	hash := sha256.Sum256([]byte(secret))
	if err := b.store.OpenSession(b.Context(), "the suite", "unknown", hash[:], token[:], time.Hour); err != nil {
		b.Fatal(err)
	}
	b.visitorCookie = http.Cookie{Name: "__Host-dispatcher", Value: secret}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := r.Cookie(b.visitorCookie.Name); err != nil && b.visitorCookie.Name != "" {
			r.AddCookie(&b.visitorCookie)
		}
		next.ServeHTTP(w, r)
	})
}

// startSignedOut starts a replica at which no visitor is signed in.
func startSignedOut(t *testing.T, changes ...func(*web.Options)) *testReplica {
	t.Helper()
	b := startEmbedded(t, changes...)
	b.visitorCookie.Name = ""
	return b
}

// startPasses runs the dashboard and the background passes, as the program does.
func (b *testReplica) startPasses() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	b.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			_ = b.web.Tick(ctx)
			_, _ = b.dispatcher.Upkeep.FoldCounts(ctx)
			_ = b.dispatcher.Upkeep.CountEventsByMinute(ctx)
			_, _ = b.dispatcher.Upkeep.EndCancelledTasks(ctx)
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
}

// callAPI sends a request to the API with the bootstrap operator token, and decodes the response into answer.
func (b *testReplica) callAPI(method, path string, body, answer any) {
	b.Helper()
	status, text := b.sendRequest(method, path, adminToken, body)
	if status >= 400 {
		b.Fatalf("%s %s: %d %s", method, path, status, text)
	}
	if answer != nil {
		if err := json.Unmarshal(text, answer); err != nil {
			b.Fatal(err)
		}
	}
}

func (b *testReplica) sendRequest(method, path, token string, body any) (status int, text []byte) {
	b.Helper()
	var content bytes.Buffer
	to := json.NewEncoder(&content)
	to.SetEscapeHTML(false) // devices do not escape HTML
	if err := to.Encode(body); err != nil {
		b.Fatal(err)
	}
	r, err := http.NewRequest(method, b.url+path, &content)
	if err != nil {
		b.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		b.Fatal(err)
	}
	defer response.Body.Close()
	text, err = io.ReadAll(response.Body)
	if err != nil {
		b.Fatal(err)
	}
	return response.StatusCode, text
}

type grantedTask struct {
	ID    int64 `json:"id"`
	Token int64 `json:"token"`
	Slot  int   `json:"slot"`
}

// sendReport sends a report of a device. It returns the task that the reply grants, or nil.
func (b *testReplica) sendReport(device string, body map[string]any) *grantedTask {
	b.Helper()
	status, text := b.sendRequest("POST", "/v1/devices/"+device+"/report", fleetToken, body)
	if status != 200 {
		b.Fatalf("report of %s: %d %s", device, status, text)
	}
	var reply struct {
		Task *grantedTask `json:"task"`
	}
	if err := json.Unmarshal(text, &reply); err != nil {
		b.Fatal(err)
	}
	return reply.Task
}

// reportUntilGranted sends reports of the device until a task is granted, and returns the task.
func (b *testReplica) reportUntilGranted(device string) grantedTask {
	b.Helper()
	var granted *grantedTask
	b.waitUntil("a grant for "+device, func() bool {
		granted = b.sendReport(device, map[string]any{"id": "g"})
		return granted != nil
	})
	return *granted
}

// createPool creates a pool and queues a batch in it that has one task for each device.
func (b *testReplica) createPool(name string, capacity int, devices ...string) {
	b.Helper()
	b.callAPI("PUT", "/v1/pools/"+name, map[string]any{"capacity": capacity}, nil)
	if len(devices) > 0 {
		b.callAPI("POST", "/v1/batches", map[string]any{"name": "b", "pool": name, "kind": "speedtest", "devices": devices}, nil)
	}
}

// closedWindows returns windows that are closed now and stay closed for some hours.
func closedWindows() []map[string]any {
	return []map[string]any{{"cron": fmt.Sprintf("0 %d * * *", time.Now().UTC().Add(12*time.Hour).Hour()), "duration": "1h"}}
}

func (b *testReplica) waitUntil(what string, holds func() bool) {
	b.Helper()
	waitUntil(b.T, what, holds)
}

func waitUntil(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline.C:
			t.Fatalf("waited in vain for %s", what)
		case <-tick.C:
		}
	}
}

// getPage requests a page of the dashboard without a browser.
func (b *testReplica) getPage(path string, cookies ...*http.Cookie) (status int, text string, header http.Header) {
	b.Helper()
	r, err := http.NewRequest(http.MethodGet, b.url+path, nil)
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range cookies {
		r.AddCookie(c)
	}
	return b.doRequest(r)
}

func (b *testReplica) doRequest(r *http.Request) (status int, text string, header http.Header) {
	b.Helper()
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(r)
	if err != nil {
		b.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		b.Fatal(err)
	}
	return response.StatusCode, string(body), response.Header
}

func deviceIDs(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("d-%d", i)
	}
	return list
}

func expectContains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in %s", part, text)
		}
	}
}

func itoa(n int64) string { return fmt.Sprint(n) }

// alterLedger executes a statement directly in the database, without the dispatcher.
func (b *testReplica) alterLedger(dsn, statement string) {
	b.Helper()
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(b.Context(), statement); err != nil {
		b.Fatal(err)
	}
}
