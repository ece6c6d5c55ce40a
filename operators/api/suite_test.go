package api_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"flag"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	rig "github.com/fleetslots/dispatcher/internal/test/rig"
	"github.com/fleetslots/dispatcher/store"
)

const (
	patience     = await.Patience
	adminToken   = rig.AdminToken
	fleetToken   = rig.FleetToken
	newBatchBody = `{"name":"b","pool":"p","devices":["d-1","d-2"]}`
)

// shared are the servers that all tests of this package share. TestMain stops them.
var shared rig.Servers //nolint:gochecknoglobals // one of each kind per test binary

// With the flag -update, the tests write the golden files anew.
var _ = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	m.Run()
	shared.Close()
}

// hook is a function that a test sets. If it is not set, run does nothing.
type hook struct{ atomic.Pointer[func()] }

func (h *hook) run() {
	if f := h.Load(); f != nil {
		(*f)()
	}
}

// interceptedStore is a ledger with hooks that run before certain calls.
type interceptedStore struct {
	*store.Store
	beforePool  hook                         // runs before a pool is read
	beforeViews hook                         // runs before devices are read for their reports
	beforeMerge hook                         // runs before the attributes of a report are merged
	beforeTasks atomic.Pointer[func() error] // is called before a page of tasks is read
}

func (l *interceptedStore) DeviceViews(ctx context.Context, names []string) ([]store.DeviceView, error) {
	l.beforeViews.run()
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
	l.beforeMerge.run()
	return l.Store.MergeAttributes(ctx, id, patch)
}

func (l *interceptedStore) Pool(ctx context.Context, name string) (store.Pool, error) {
	l.beforePool.run()
	return l.Store.Pool(ctx, name)
}

// testAPI is a replica whose ledger has hooks.
type testAPI struct {
	*rig.Rig
	store *interceptedStore
}

// runOnBothBackends runs a test once on the embedded stores and once on real servers. It is for tests of a promise of
// the README, and for tests in which SQLite and Postgres work differently.
func runOnBothBackends(t *testing.T, test func(b *testAPI)) {
	t.Helper()
	shared.RunOnBoth(t, func(t *testing.T, at rig.Stores) { t.Helper(); test(startOn(t, at)) })
}

// runOnServers runs a test on real servers, and in the long suite also on the embedded stores.
func runOnServers(t *testing.T, test func(b *testAPI)) {
	t.Helper()
	shared.Run(t, func(t *testing.T, at rig.Stores) { t.Helper(); test(startOn(t, at)) })
}

func startEmbedded(t *testing.T, changes ...func(*rig.Options)) *testAPI {
	t.Helper()
	return startOn(t, rig.EmbeddedStores(t), changes...)
}

func startOnServers(t *testing.T) *testAPI {
	t.Helper()
	return startOn(t, shared.NewStores(t))
}

func startOn(t *testing.T, at rig.Stores, changes ...func(*rig.Options)) *testAPI {
	t.Helper()
	l := &interceptedStore{Store: at.Ledger}
	intercept := func(o *rig.Options) { o.API.Store, o.Dispatcher.Store = l, l }
	return &testAPI{rig.Start(t, at, append([]func(*rig.Options){intercept}, changes...)...), l}
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

// createToken creates an operator token with this role.
func (b *testAPI) createToken(role string) string {
	b.Helper()
	secret := credentials.NewToken()
	hash := credentials.HashToken(secret)
	_, err := b.store.CreateToken(b.Context(), "test", store.Token{Name: role + " " + rand.Text(), Role: role}, hash[:])
	b.Must(err)
	return secret
}

// createCallerToken creates an operator token with the role caller and these patterns.
func (b *testAPI) createCallerToken(patterns string) string {
	b.Helper()
	token, _ := b.Call("POST", "/v1/tokens", adminToken, `{"name":"`+rand.Text()+`","role":"caller",`+patterns+`}`).Expect(201).Object()["token"].(string)
	return token
}

// createDevice creates a device over the API and returns its token.
func (b *testAPI) createDevice(id string) string {
	b.Helper()
	token, _ := b.Call("POST", "/v1/devices", adminToken, `{"id":"`+id+`"}`).Expect(201).Object()["token"].(string)
	return token
}

// indentJSON formats JSON so that two texts can be compared line by line.
func indentJSON(t *testing.T, text []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	must.Succeed(t, json.Indent(&out, text, "", "  "))
	return append(bytes.TrimSpace(out.Bytes()), '\n')
}

// sendWithType sends a body with this Content-Type. If contentType is empty, it sends no such header.
func (b *testAPI) sendWithType(method, path, contentType, body string) rig.Response {
	b.Helper()
	header := http.Header{"Authorization": {"Bearer " + adminToken}}
	if contentType != "" {
		header.Set("Content-Type", contentType)
	}
	return b.Send(method, path, header, body)
}
