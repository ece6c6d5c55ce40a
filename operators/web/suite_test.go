package web_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	rig "github.com/fleetslots/dispatcher/internal/test/rig"
	"github.com/fleetslots/dispatcher/operators/api"
	"github.com/fleetslots/dispatcher/operators/gate"
	"github.com/fleetslots/dispatcher/operators/web"
	"github.com/fleetslots/dispatcher/store"
)

const (
	patience   = await.Patience
	adminToken = rig.AdminToken
	fleetToken = rig.FleetToken
)

// The servers that all tests of this package share: one of each kind per test binary. TestMain ends them.
var (
	shared  rig.Servers //nolint:gochecknoglobals // see above
	browser chromium    //nolint:gochecknoglobals // see above
)

func TestMain(m *testing.M) {
	m.Run()
	shared.Close()
	browser.Close()
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
	*rig.Rig
	store         *countingStore
	web           *web.Web
	visitorCookie http.Cookie // cookie for a request that has none; without a name, nobody is signed in
}

// startEmbedded starts a replica on the embedded stores (SQLite and the in-process Redis).
func startEmbedded(t *testing.T, changes ...func(*web.Options)) *testReplica {
	t.Helper()
	return startReplica(t, rig.EmbeddedStores(t), changes...)
}

// startOnServers starts a replica on a Postgres database and a Redis that no other test uses.
func startOnServers(t *testing.T, changes ...func(*web.Options)) *testReplica {
	t.Helper()
	return startReplica(t, shared.NewStores(t), changes...)
}

func startReplica(t *testing.T, at rig.Stores, changes ...func(*web.Options)) *testReplica {
	t.Helper()
	return startReplicaWith(t, at, func(*rig.Options) {}, changes...)
}

// startReplicaWith starts a replica on the given stores. The function changeRig changes the settings of the replica. The
// functions changes change the settings of its dashboard.
func startReplicaWith(t *testing.T, at rig.Stores, changeRig func(*rig.Options), changes ...func(*web.Options)) *testReplica {
	t.Helper()
	b := &testReplica{store: &countingStore{Store: at.Ledger}}
	b.Rig = rig.Start(t, at, func(o *rig.Options) {
		o.API.Store, o.Dispatcher.Store = b.store, b.store
		page := web.Options{
			Gate:   gate.New(gate.Options{Log: slog.New(slog.DiscardHandler), Ledger: at.Ledger}),
			Ledger: b.store, AdminToken: adminToken, ReportPeriod: 30 * time.Second, Logger: slog.New(slog.DiscardHandler),
			System: web.System{Mode: "dev", Version: "test"}, PageTimeout: patience,
		}
		for _, change := range changes {
			change(&page)
		}
		o.API.Gate = page.Gate
		o.Handler = func(a *api.API) http.Handler {
			page.API = a
			if page.System.Checks == nil {
				page.System.Checks = a.Dependencies
			}
			b.web = web.New(page)
			return b.signInVisitors(t, b.web.Handler(a.Handler()))
		}
		changeRig(o)
	})
	t.Cleanup(b.web.Stop)
	b.startPasses()
	return b
}

// signInVisitors makes each request without a cookie a request of a signed-in admin.
func (b *testReplica) signInVisitors(t *testing.T, next http.Handler) http.Handler {
	t.Helper()
	secret, token := rand.Text(), sha256.Sum256([]byte(adminToken))
	hash := sha256.Sum256([]byte(secret))
	must.Succeed(t, b.store.OpenSession(t.Context(), "the suite", "unknown", hash[:], token[:], time.Hour))
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
			_, _ = b.Dispatcher.Upkeep.FoldCounts(ctx)
			_ = b.Dispatcher.Upkeep.CountEventsByMinute(ctx)
			_, _ = b.Dispatcher.Upkeep.EndCancelledTasks(ctx)
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
}

// sendReport sends a report of a device. It returns the task that the reply grants, or nil.
func (b *testReplica) sendReport(device string, body any) *devices.Task {
	b.Helper()
	return b.Report(device, body).Task
}

// createPool creates a pool and queues a batch in it that has one task for each device.
func (b *testReplica) createPool(name string, capacity int, devices ...string) {
	b.Helper()
	b.PutPool(name, map[string]any{"capacity": capacity})
	if len(devices) > 0 {
		b.CreateBatch(map[string]any{"name": "b", "pool": name, "kind": "speedtest", "devices": devices})
	}
}

// closedWindows returns windows that are closed now and stay closed for some hours.
func closedWindows() []map[string]any {
	return []map[string]any{{"cron": fmt.Sprintf("0 %d * * *", time.Now().UTC().Add(12*time.Hour).Hour()), "duration": "1h"}}
}

// getPage requests a page of the dashboard without a browser.
func (b *testReplica) getPage(path string, cookies ...*http.Cookie) (status int, text string, header http.Header) {
	b.Helper()
	a := b.Send(http.MethodGet, path, withCookies(http.Header{}, cookies), nil)
	return a.Status, string(a.Body), a.Header
}

// withCookies adds cookies to the header of a request.
func withCookies(header http.Header, cookies []*http.Cookie) http.Header {
	for _, c := range cookies {
		header.Add("Cookie", c.Name+"="+c.Value)
	}
	return header
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
func (b *testReplica) alterLedger(statement string) {
	b.Helper()
	_, err := b.OpenDB(b.T).ExecContext(b.Context(), statement)
	b.Must(err)
}
