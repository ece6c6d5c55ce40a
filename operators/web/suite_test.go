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
	patience   = backends.Patience
	adminToken = "admin-token-of-the-tests"
	fleetToken = "fleet-token-of-the-tests"
)

// The servers of all tests of this package: one of each per test binary. TestMain ends them.
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

// ledger counts what is read from it.
type ledger struct {
	*store.Store
	logs, views atomic.Int64
	readings    atomic.Int64 // pages that were read
	events      atomic.Int64
	results     atomic.Int64 // results that were summarized
	down        atomic.Bool  // the log cannot be read
	panics      atomic.Bool  // counting tasks panics
	hangs       atomic.Bool  // counting tasks hangs
	judged      atomic.Int64 // evaluated samples of waiting tasks
	keeping     atomic.Int64 // samples that were evaluated inside the snapshot of a page
}

type inPage struct{}

func (l *ledger) InOneSnapshot(ctx context.Context, read func(ctx context.Context, at store.Snapshot) error) error {
	l.readings.Add(1)
	return l.Store.InOneSnapshot(ctx, func(ctx context.Context, at store.Snapshot) error {
		return read(context.WithValue(ctx, inPage{}, true), at)
	})
}

func (l *ledger) SampleWaiting(ctx context.Context, of store.WaitingOf, most int) (store.WaitingTasks, error) {
	l.judged.Add(1)
	if ctx.Value(inPage{}) != nil {
		l.keeping.Add(1)
	}
	return l.Store.SampleWaiting(ctx, of, most)
}

func (l *ledger) TaskCounts(ctx context.Context, pool string, heldMax int) (store.TaskCounts, error) {
	if l.panics.Load() {
		panic("by the test")
	}
	if l.hangs.Load() {
		<-ctx.Done()
	}
	return l.Store.TaskCounts(ctx, pool, heldMax)
}

func (l *ledger) MarkEvents(ctx context.Context, sent int64) (store.EventMark, error) {
	l.logs.Add(1)
	if l.down.Load() {
		return store.EventMark{}, errors.New("down by the test")
	}
	return l.Store.MarkEvents(ctx, sent)
}

func (l *ledger) Events(ctx context.Context, f store.EventFilter) ([]store.Event, error) {
	l.events.Add(1)
	return l.Store.Events(ctx, f)
}

func (l *ledger) SampleResults(ctx context.Context, of store.Sample, each func(store.Sampled)) error {
	return l.Store.SampleResults(ctx, of, func(one store.Sampled) { l.results.Add(1); each(one) })
}

func (l *ledger) PoolViews(ctx context.Context, after string, limit, waiting int) ([]store.PoolView, error) {
	l.views.Add(1)
	return l.Store.PoolViews(ctx, after, limit, waiting)
}

// bench is a replica with its dashboard, on stores that other replicas may share.
type bench struct {
	*testing.T
	store      *ledger
	redis      servers.RedisAt
	dispatcher *dispatcher.Dispatcher
	web        *web.Web
	server     *httptest.Server
	url        string
	visitor    http.Cookie // cookie for a request that has none; without a name, nobody is signed in
}

// embedded starts a replica on the embedded stores.
func embedded(t *testing.T, changes ...func(*web.Options)) *bench {
	t.Helper()
	return replica(t, backends.SQLite(t, filepath.Join(t.TempDir(), "ledger.db")), servers.InProcessRedis(t), changes...)
}

// onServers starts a replica on its own database and its own Redis.
func onServers(t *testing.T, changes ...func(*web.Options)) (b *bench, dsn string) {
	t.Helper()
	dsn = postgres.NewLedger(t)
	return replica(t, backends.Postgres(t, dsn), cache.NewDatabase(t), changes...), dsn
}

func replica(t *testing.T, s *store.Store, at servers.RedisAt, changes ...func(*web.Options)) *bench {
	t.Helper()
	return replicaWith(t, s, at, func(*dispatcher.Config) {}, changes...)
}

// replicaWith starts a replica with a changed configuration of the dispatcher.
func replicaWith(t *testing.T, s *store.Store, at servers.RedisAt, set func(*dispatcher.Config), changes ...func(*web.Options)) *bench {
	t.Helper()
	client := backends.Redis(t, at).Client
	b := &bench{T: t, store: &ledger{Store: s}, redis: at}
	seen := seen.NewList(client)
	config := dispatcher.Config{
		Store: b.store, Semaphore: slots.New(client), Limits: policies.LimitsOf(limits.New(client)), Recent: seen, LeaseMargin: 10 * time.Second, FleetTokens: []string{fleetToken}, FleetMode: credentials.FleetAny,
	}
	set(&config)
	b.dispatcher = dispatcher.New(config)
	o := web.Options{
		Gate:   gate.New(gate.Options{Log: slog.New(slog.DiscardHandler), Ledger: s}),
		Ledger: b.store, AdminToken: adminToken, Period: 30 * time.Second, Logger: slog.New(slog.DiscardHandler),
		System: web.System{Mode: "dev", Version: "test"}, PageTime: patience,
	}
	for _, change := range changes {
		change(&o)
	}
	a := api.New(api.Options{
		Gate:       o.Gate,
		Dispatcher: b.dispatcher, Store: b.store, Recent: seen, AdminToken: adminToken, LeaseMin: time.Second, AnswerTime: patience, Metrics: prometheus.NewRegistry(), Version: "test",
		Logger: slog.New(slog.DiscardHandler), Reports: devicehttp.New(devicehttp.Options{Handler: b.dispatcher, Refused: o.Gate.RefuseReport, Logger: slog.New(slog.DiscardHandler)}),
	})
	o.API = a
	if o.System.Checks == nil {
		o.System.Checks = a.Dependencies
	}
	b.web = web.New(o)
	b.server = httptest.NewServer(b.admitting(b.web.Handler(a.Handler())))
	b.url = b.server.URL
	t.Cleanup(func() {
		b.web.Stop()
		b.server.Close()
	})
	b.work()
	return b
}

// admitting treats a request without a cookie as a request of a signed-in admin.
func (b *bench) admitting(next http.Handler) http.Handler {
	b.Helper()
	secret, token := rand.Text(), sha256.Sum256([]byte(adminToken))
	hash := sha256.Sum256([]byte(secret))
	if err := b.store.OpenSession(b.Context(), hash[:], token[:], time.Hour); err != nil {
		b.Fatal(err)
	}
	b.visitor = http.Cookie{Name: "__Host-dispatcher", Value: secret}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := r.Cookie(b.visitor.Name); err != nil && b.visitor.Name != "" {
			r.AddCookie(&b.visitor)
		}
		next.ServeHTTP(w, r)
	})
}

// unvisited starts a replica at which nobody is signed in.
func unvisited(t *testing.T, changes ...func(*web.Options)) *bench {
	t.Helper()
	b := embedded(t, changes...)
	b.visitor.Name = ""
	return b
}

// work runs the dashboard and the background passes, as the program does.
func (b *bench) work() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	b.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		recalled := false
		for {
			recalled = recalled || b.web.Recall(ctx) == nil
			_ = b.web.Tick(ctx)
			_, _ = b.dispatcher.Upkeep.Fold(ctx)
			_ = b.dispatcher.Upkeep.CountMinutes(ctx)
			_, _ = b.dispatcher.Upkeep.EndCancelled(ctx)
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
}

// call sends a request to the API as the bootstrap operator, and decodes the answer.
func (b *bench) call(method, path string, body, answer any) {
	b.Helper()
	status, text := b.send(method, path, adminToken, body)
	if status >= 400 {
		b.Fatalf("%s %s: %d %s", method, path, status, text)
	}
	if answer != nil {
		if err := json.Unmarshal(text, answer); err != nil {
			b.Fatal(err)
		}
	}
}

func (b *bench) send(method, path, token string, body any) (status int, text []byte) {
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

type task struct {
	ID    int64 `json:"id"`
	Token int64 `json:"token"`
	Slot  int   `json:"slot"`
}

// report sends a report of a device, and returns the granted task.
func (b *bench) report(device string, body map[string]any) *task {
	b.Helper()
	status, text := b.send("POST", "/v1/devices/"+device+"/report", fleetToken, body)
	if status != 200 {
		b.Fatalf("report of %s: %d %s", device, status, text)
	}
	var reply struct {
		Task *task `json:"task"`
	}
	if err := json.Unmarshal(text, &reply); err != nil {
		b.Fatal(err)
	}
	return reply.Task
}

// grant lets a device report until it is granted a task.
func (b *bench) grant(device string) task {
	b.Helper()
	var granted *task
	b.until("a grant for "+device, func() bool {
		granted = b.report(device, map[string]any{"id": "g"})
		return granted != nil
	})
	return *granted
}

// pool creates a pool, and a batch with one task for each device.
func (b *bench) pool(name string, capacity int, devices ...string) {
	b.Helper()
	b.call("PUT", "/v1/pools/"+name, map[string]any{"capacity": capacity}, nil)
	if len(devices) > 0 {
		b.call("POST", "/v1/batches", map[string]any{"name": "b", "pool": name, "kind": "speedtest", "devices": devices}, nil)
	}
}

// closedNow returns windows that are closed now and stay closed for some hours.
func closedNow() []map[string]any {
	return []map[string]any{{"cron": fmt.Sprintf("0 %d * * *", time.Now().UTC().Add(12*time.Hour).Hour()), "duration": "1h"}}
}

func (b *bench) until(what string, holds func() bool) {
	b.Helper()
	until(b.T, what, holds)
}

func until(t *testing.T, what string, holds func() bool) {
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

// get reads a page without a browser.
func (b *bench) get(path string, cookies ...*http.Cookie) (status int, text string, header http.Header) {
	b.Helper()
	r, err := http.NewRequest(http.MethodGet, b.url+path, nil)
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range cookies {
		r.AddCookie(c)
	}
	return b.ask(r)
}

func (b *bench) ask(r *http.Request) (status int, text string, header http.Header) {
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

func devices(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("d-%d", i)
	}
	return list
}

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in %s", part, text)
		}
	}
}

func itoa(n int64) string { return fmt.Sprint(n) }

// alter changes the ledger without the knowledge of the dispatcher.
func (b *bench) alter(dsn, statement string) {
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
