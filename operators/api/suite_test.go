package api_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

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
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

const (
	patience     = backends.LongTimeout
	adminToken   = "admin-token-of-the-tests"
	fleetToken   = "fleet-token-of-the-tests"
	newBatchBody = `{"name":"b","pool":"p","devices":["d-1","d-2"]}`
)

// The servers that all tests of this package share: one of each kind per test binary. TestMain stops them.
var (
	postgres servers.SharedPostgres //nolint:gochecknoglobals // see above
	cache    servers.SharedRedis    //nolint:gochecknoglobals // see above
)

// With the flag -update, the tests write the golden files anew.
var _ = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	code := m.Run()
	postgres.Close()
	cache.Close()
	os.Exit(code) //nolint:forbidigo // TestMain's way to end
}

// interceptedStore is a ledger for which a test can set functions that run before certain calls.
type interceptedStore struct {
	*store.Store
	beforePool  atomic.Pointer[func()]       // is called before a pool is read
	beforeViews atomic.Pointer[func()]       // is called before devices are read for their reports
	beforeMerge atomic.Pointer[func()]       // is called before the attributes of a report are merged
	beforeTasks atomic.Pointer[func() error] // called before a page of tasks is read
}

func (l *interceptedStore) DeviceViews(ctx context.Context, names []string) ([]store.DeviceView, error) {
	if spoil := l.beforeViews.Load(); spoil != nil {
		(*spoil)()
	}
	return l.Store.DeviceViews(ctx, names)
}

func (l *interceptedStore) Tasks(ctx context.Context, filter store.TaskFilter) ([]store.Task, error) {
	if spoil := l.beforeTasks.Load(); spoil != nil {
		if err := (*spoil)(); err != nil {
			return nil, err
		}
	}
	return l.Store.Tasks(ctx, filter)
}

func (l *interceptedStore) MergeAttributes(ctx context.Context, id string, patch json.RawMessage) error {
	if spoil := l.beforeMerge.Load(); spoil != nil {
		(*spoil)()
	}
	return l.Store.MergeAttributes(ctx, id, patch)
}

func (l *interceptedStore) Pool(ctx context.Context, name string) (store.Pool, error) {
	if spoil := l.beforePool.Load(); spoil != nil {
		(*spoil)()
	}
	return l.Store.Pool(ctx, name)
}

// testAPI is the operators' API on real stores, behind a real network listener.
type testAPI struct {
	*testing.T
	dispatcher *dispatcher.Dispatcher
	store      *interceptedStore
	semaphore  *slots.Semaphore
	redis      redis.UniversalClient
	api        *api.API
	url        string
	metrics    *prometheus.Registry
	dsn        string // address of the real Postgres
}

type testOptions struct {
	api        api.Options
	dispatcher dispatcher.Config
	reports    devicehttp.Options
}

// runOnBothBackends runs a test once on the embedded stores and once on real servers. It is for tests of a promise of the README,
// and for tests in which SQLite and Postgres work differently.
func runOnBothBackends(t *testing.T, test func(b *testAPI)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(startEmbedded(t))
	})
	t.Run("servers", func(t *testing.T) {
		t.Parallel()
		test(startOnServers(t))
	})
}

// runOnServers runs a test on real servers, and in the long suite also on the embedded stores.
func runOnServers(t *testing.T, test func(b *testAPI)) {
	t.Helper()
	if !testing.Short() {
		runOnBothBackends(t, test)
		return
	}
	t.Run("servers", func(t *testing.T) {
		t.Parallel()
		test(startOnServers(t))
	})
}

func startEmbedded(t *testing.T, changes ...func(*testOptions)) *testAPI {
	t.Helper()
	return newTestAPI(t, backends.OpenSQLite(t, filepath.Join(t.TempDir(), "ledger.db")), servers.InProcessRedis(t), changes...)
}

func startOnServers(t *testing.T) *testAPI {
	t.Helper()
	dsn := postgres.NewLedger(t)
	b := newTestAPI(t, backends.OpenPostgres(t, dsn), cache.NewDatabase(t))
	b.dsn = dsn
	return b
}

func newTestAPI(t *testing.T, s *store.Store, at servers.RedisAt, changes ...func(*testOptions)) *testAPI {
	t.Helper()
	client := backends.OpenRedis(t, at).Client
	b := &testAPI{T: t, store: &interceptedStore{Store: s}, semaphore: slots.New(client), redis: client, metrics: prometheus.NewRegistry()}
	b.api = b.newAPI(changes...)
	b.url = b.startServer(b.api.Handler())
	return b
}

func (b *testAPI) newAPI(changes ...func(*testOptions)) *api.API {
	b.Helper()
	with := testOptions{
		api: api.Options{
			Store: b.store, Recent: seen.NewList(b.redis), AdminToken: adminToken, LeaseMin: time.Second, LongPollMax: time.Minute, AnswerTimeout: patience, Metrics: b.metrics, MetricsMaxAge: time.Nanosecond, Version: "test",
			Gate:   gate.New(gate.Options{Log: slog.New(slog.DiscardHandler), Ledger: b.store, MaxGuesses: math.MaxInt}),
			Logger: slog.New(slog.DiscardHandler),
			Checks: []api.Check{
				{Name: "postgres", Required: true, Probe: b.store.Ping},
				{Name: "redis", Probe: func(ctx context.Context) error { return b.redis.Ping(ctx).Err() }},
			},
		},
		dispatcher: dispatcher.Config{
			Store: b.store, Semaphore: b.semaphore, Limits: policies.NewLimits(limits.New(b.redis)), Recent: seen.NewList(b.redis), LeaseMargin: 10 * time.Second, Registerer: b.metrics,
			FleetTokens: []string{fleetToken}, Jitter: func() float64 { return 0.5 },
		},
	}
	for _, change := range changes {
		change(&with)
	}
	b.dispatcher = dispatcher.New(with.dispatcher)
	with.api.Dispatcher = b.dispatcher
	with.reports.Handler, with.reports.Logger, with.reports.OnRefused, with.reports.AddressOf = b.dispatcher, with.api.Logger, with.api.Gate.CountReportRefusal, with.api.Gate.ClientAddress
	with.api.Reports = devicehttp.New(with.reports)
	return api.New(with.api)
}

func (b *testAPI) startServer(handler http.Handler) string {
	b.Helper()
	server := httptest.NewServer(handler)
	b.Cleanup(server.Close)
	return server.URL
}

type apiResponse struct {
	t           *testing.T
	requestLine string
	status      int
	header      http.Header
	body        []byte
}

// call sends a request with this token to the API. body may be a string or a reader.
func (b *testAPI) call(method, path, token string, body any) apiResponse {
	b.Helper()
	return b.callURL(b.url, method, path, token, body)
}

func (b *testAPI) callURL(url, method, path, token string, body any) apiResponse {
	b.Helper()
	var reader io.Reader
	switch content := body.(type) {
	case nil:
	case string:
		reader = strings.NewReader(content)
	case io.Reader:
		reader = content
	}
	request, err := http.NewRequestWithContext(b.Context(), method, url+path, reader)
	if err != nil {
		b.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	if reader != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	return b.doRequest(request)
}

// doRequest sends a request. It never follows a redirect.
func (b *testAPI) doRequest(request *http.Request) apiResponse {
	b.Helper()
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		b.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		b.Fatal(err)
	}
	what := request.Method + " " + request.URL.RequestURI()
	return apiResponse{t: b.T, requestLine: what, status: response.StatusCode, header: response.Header, body: body}
}

func (b *testAPI) get(path string) apiResponse {
	b.Helper()
	return b.call("GET", path, adminToken, nil)
}

func (b *testAPI) sendReport(device, body string) apiResponse {
	b.Helper()
	return b.call("POST", "/v1/devices/"+device+"/report", fleetToken, body)
}

// expectStatus fails the test if the response does not have this status. It returns the response.
func (a apiResponse) expectStatus(status int) apiResponse {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("%s: status %d, want %d: %.300s", a.requestLine, a.status, status, a.body)
	}
	return a
}

// decode decodes the JSON body of the response into target.
func (a apiResponse) decode(target any) {
	a.t.Helper()
	if err := json.Unmarshal(a.body, target); err != nil {
		a.t.Fatalf("%s: %v: %.300s", a.requestLine, err, a.body)
	}
}

// decodeObject returns the body of the response as a JSON object.
func (a apiResponse) decodeObject() map[string]any {
	a.t.Helper()
	var fields map[string]any
	a.decode(&fields)
	return fields
}

type problem struct {
	Type, Title, Code, Detail string
	Status                    int
	ReportAfterMS             int64 `json:"report_after_ms"`
}

// expectProblem fails the test unless the response is a problem (RFC 9457) with this status and code.
func (a apiResponse) expectProblem(status int, code string) problem {
	a.t.Helper()
	var p problem
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		a.t.Fatalf("%s: %d, content type %q, want a problem: %.300s", a.requestLine, a.status, got, a.body)
	}
	a.decode(&p)
	if a.status != status || p.Status != status || p.Code != code {
		a.t.Errorf("%s: status %d, want %d with code %q: %.300s", a.requestLine, a.status, status, code, a.body)
	}
	if p.Type != "about:blank" || p.Title != http.StatusText(status) || p.Detail == "" {
		a.t.Errorf("%s: not a whole problem: %.300s", a.requestLine, a.body)
	}
	return p
}

// listField returns the field with this name, which must be a list.
func listField(fields map[string]any, name string) []any {
	l, _ := fields[name].([]any)
	return l
}

// asObject returns the value, which must be a JSON object.
func asObject(value any) map[string]any {
	o, _ := value.(map[string]any)
	return o
}

// expectMentions fails the test unless the texts of the problem contain all parts.
func (p problem) expectMentions(t *testing.T, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(p.Detail, part) {
			t.Errorf("the problem does not name %q: %q", part, p.Detail)
		}
	}
}

// putPool creates or changes a pool with these settings (JSON).
func (b *testAPI) putPool(name, settings string) {
	b.Helper()
	if a := b.call("PUT", "/v1/pools/"+name, adminToken, settings); a.status > 299 {
		b.Fatalf("%s: %d: %s", a.requestLine, a.status, a.body)
	}
}

// createBatch creates a batch from this JSON body and returns the id of the batch.
func (b *testAPI) createBatch(body string) int64 {
	b.Helper()
	var made struct{ ID, Tasks int64 }
	b.call("POST", "/v1/batches", adminToken, body).expectStatus(201).decode(&made)
	return made.ID
}

type grantedTask struct {
	ID, Token int64
	Slot      int
	Attempt   int
}

// reportUntilGranted sends reports of an idle device until a task is granted, and returns the task.
func (b *testAPI) reportUntilGranted(device string) grantedTask {
	b.Helper()
	var reply struct {
		Reason string
		Task   grantedTask
	}
	for try := 0; try == 0 || reply.Reason == "unavailable" && try < 5; try++ { // a device repeats its report
		b.sendReport(device, `{"id":"g"}`).expectStatus(200).decode(&reply)
	}
	if reply.Reason != "granted" {
		b.Fatalf("%s: reason %s, want granted", device, reply.Reason)
	}
	return reply.Task
}

func (g grantedTask) resultBody(status, extraFields string) string {
	return fmt.Sprintf(`{"id":"r","results":[{"task":%d,"token":%d,"status":%q%s}],"accept":false}`, g.ID, g.Token, status, extraFields)
}

// createToken creates an operator token with this role.
func (b *testAPI) createToken(role string) string {
	b.Helper()
	secret := credentials.NewToken()
	hash := credentials.HashToken(secret)
	if _, err := b.store.CreateToken(b.Context(), "test", store.Token{Name: role + " " + rand.Text(), Role: role}, hash[:]); err != nil {
		b.Fatal(err)
	}
	return secret
}

// createCallerToken creates an operator token with the role caller and these patterns.
func (b *testAPI) createCallerToken(patterns string) string {
	b.Helper()
	token, _ := b.call("POST", "/v1/tokens", adminToken, `{"name":"`+rand.Text()+`","role":"caller",`+patterns+`}`).expectStatus(201).decodeObject()["token"].(string)
	return token
}

// createDevice creates a device over the API and returns its token.
func (b *testAPI) createDevice(id string) string {
	b.Helper()
	token, _ := b.call("POST", "/v1/devices", adminToken, `{"id":"`+id+`"}`).expectStatus(201).decodeObject()["token"].(string)
	return token
}

// indentJSON formats JSON so that two texts can be compared line by line.
func indentJSON(t *testing.T, text []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", "  "); err != nil {
		t.Fatal(err)
	}
	return append(bytes.TrimSpace(out.Bytes()), '\n')
}

// sendWithType sends a body with this Content-Type. If contentType is empty, it sends no such header.
func (b *testAPI) sendWithType(method, path, contentType, body string) apiResponse {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), method, b.url+path, strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+adminToken)
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	return b.doRequest(request)
}
