package operators_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/operators"
)

// recordingTransport is an http.RoundTripper that records which operations were called, and the last response.
type recordingTransport struct {
	mu          sync.Mutex
	calls       []string // for example GET /v1/pools
	lastBody    []byte
	lastSegment string // last segment of the path of the last request
}

// RoundTrip sends the request to the dispatcher and records it.
func (h *recordingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls, h.lastSegment = append(h.calls, r.Method+" "+r.URL.Path), path.Base(r.URL.Path)
	h.lastBody, err = io.ReadAll(answer.Body)
	answer.Body = io.NopCloser(bytes.NewReader(h.lastBody))
	return answer, err
}

// expectSameFields checks that value has exactly the fields of the server's last response. If the response is a list, value must have the
// entries of the list.
func (h *recordingTransport) expectSameFields(t *testing.T, call string, value any) {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatalf("%s: %v", call, err)
	}
	said := json.RawMessage(h.lastBody)
	if text[0] == '[' {
		var page map[string]json.RawMessage
		if err := json.Unmarshal(h.lastBody, &page); err != nil {
			t.Fatalf("%s: %v", call, err)
		}
		said = page[h.lastSegment]
	}
	var got, want any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatalf("%s: %v", call, err)
	}
	if err := json.Unmarshal(said, &want); err != nil {
		t.Fatalf("%s: %v: %s", call, err, said)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: the type differs from what the server said:\n%s", call, diff)
	}
}

// collectAll reads a list to its end and returns all entries.
func collectAll[T any](t *testing.T, entries iter.Seq2[T, error]) []T {
	t.Helper()
	var list []T
	for entry, err := range entries {
		must.Succeed(t, err)
		list = append(list, entry)
	}
	if len(list) == 0 {
		t.Fatalf("nothing is listed: %T", list)
	}
	return list
}

// checkedClient is a client of the API. The results of its methods are compared with the responses of the server.
type checkedClient struct {
	*testing.T
	*operators.Client
	transport *recordingTransport
	ctx       context.Context //nolint:containedctx // the context of the test
}

// expectResponse compares the result of the last call with the response of the server.
func (c *checkedClient) expectResponse(call string, value any, err error) {
	c.Helper()
	if err != nil {
		c.Fatalf("%s: %v", call, err)
	}
	c.transport.expectSameFields(c.T, call, value)
}

// Every operation of the OpenAPI document must have a method of the client. The Go types must contain every field
// that the server sends.
func TestEveryOperationHasAMethod(t *testing.T) {
	t.Parallel()
	h := &recordingTransport{}
	client, err := operators.New(operators.Config{URL: os.Getenv("DISPATCHER_URL"), Token: os.Getenv("DISPATCHER_TOKEN"), Transport: h})
	must.Succeed(t, err)
	c := &checkedClient{T: t, Client: client, transport: h, ctx: t.Context()}
	c.checkPools()
	c.checkDevices()
	batch := c.checkBatches()
	c.checkTasks(batch)
	c.checkSlots()
	c.checkLeases()
	c.checkProfilesAndTokens()
	c.checkDeletions(batch)
	for operation := range c.documentOperations() {
		form := regexp.MustCompile("^" + regexp.MustCompile(`\\\{[^/]+\\\}`).ReplaceAllString(regexp.QuoteMeta(operation), "[^/]+") + "$")
		if !slices.ContainsFunc(h.calls, form.MatchString) {
			t.Errorf("%s: no method calls it", operation)
		}
	}
}

// documentOperations returns the operations of the OpenAPI document that operators call.
func (c *checkedClient) documentOperations() map[string]bool {
	response, err := http.Get(os.Getenv("DISPATCHER_URL") + "/openapi.json")
	must.Succeed(c, err)
	defer response.Body.Close()
	var document struct {
		Paths map[string]map[string]struct{ OperationID string }
	}
	must.Succeed(c, json.NewDecoder(response.Body).Decode(&document))
	found := map[string]bool{}
	for at, methods := range document.Paths {
		for method, operation := range methods {
			if operation.OperationID != "report" {
				found[strings.ToUpper(method)+" "+at] = true
			}
		}
	}
	if len(found) < 40 {
		c.Fatalf("%d operations", len(found))
	}
	return found
}

func (c *checkedClient) checkPools() {
	limits := []operators.Policy{{Name: "starts", Per: "tags.nobody", Algorithm: "sliding", Windows: []operators.PolicyWindow{{Max: 30, PerMS: 60_000}}}}
	put, err := c.Pools.Put(c.ctx, "c", operators.PoolSettings{Capacity: 3, Limits: limits, Windows: []operators.Window{{Cron: "* * * * *", Duration: "2m"}}})
	c.expectResponse("Put pool", put, err)
	changed, err := c.Pools.Change(c.ctx, "c", operators.PoolPatch{
		Capacity: operators.Set(2), LeaseMS: operators.Set(int64(600_000)), Paused: operators.Set(true), Windows: operators.Default[[]operators.Window](),
	})
	c.expectResponse("Change pool", changed, err)
	resumed, err := c.Pools.Resume(c.ctx, "c")
	c.expectResponse("Resume pool", resumed, err)
	paused, err := c.Pools.Pause(c.ctx, "c", operators.PauseReason{Reason: "a look first"})
	c.expectResponse("Pause pool", paused, err)
	if changed.Capacity != 2 || !changed.Paused || resumed.Paused || len(resumed.Windows) > 0 || paused.PauseReason != "a look first" || paused.PausedAt == nil {
		c.Errorf("%+v, %+v, %+v", changed, resumed, paused)
	}
	if done, err := c.Pools.ResumeMine(c.ctx, false); err != nil || done.Pools != 1 {
		c.Fatalf("resumed %+v, %v", done, err)
	}
	if done, err := c.Pools.PauseAll(c.ctx, operators.PauseAll{StopRunning: true}, true); err != nil || done.Pools != 1 || done.Stopping != 0 {
		c.Errorf("would pause %+v, %v", done, err)
	}
	pool, err := c.Pools.Get(c.ctx, "c")
	c.expectResponse("Pool", pool, err)
	c.expectResponse("Pools", collectAll(c.T, c.Pools.List(c.ctx, operators.PoolFilter{Name: "C", Sort: "trouble"})), nil)
	totals, err := c.Pools.Totals(c.ctx, operators.All{})
	c.expectResponse("Totals", totals, err)
	series, err := c.Pools.Series(c.ctx, "c", operators.SeriesQuery{Range: "24h"})
	c.expectResponse("Series", series, err)
	limited, err := c.Pools.Limited(c.ctx, "c", operators.LimitedQuery{Limit: 5})
	c.expectResponse("Limited", limited, err)
	usage, err := c.Pools.Usage(c.ctx, "c", operators.UsageQuery{Limit: 5})
	c.expectResponse("Usage", usage, err)
}

func (c *checkedClient) checkDevices() {
	made, err := c.Devices.Create(c.ctx, operators.NewDevice{ID: "c-1", Tags: map[string]string{"site": "hz"}})
	c.expectResponse("Create device", made, err)
	site := "sh"
	changed, err := c.Devices.Change(c.ctx, "c-1", operators.DevicePatch{Tags: operators.Set(map[string]*string{"site": nil, "area": &site})})
	c.expectResponse("Change device", changed, err)
	if made.Token == "" || len(changed.Tags) != 1 || changed.Tags["area"] != site {
		c.Errorf("%+v, %+v", made, changed)
	}
	for _, dry := range []bool{true, false} {
		n, err := c.Devices.Retag(c.ctx, operators.DeviceFilter{Tags: []string{"area:sh"}}, operators.Retag{Set: map[string]string{"model": "x"}, Unset: []string{"none"}}, dry)
		if err != nil || n != 1 {
			c.Errorf("retagged %d, %v", n, err)
		}
	}
	n, err := c.Devices.Retag(c.ctx, operators.DeviceFilter{Prefix: "c-1"}, operators.Retag{Unset: []string{"model"}}, false)
	c.expectResponse("Retag", operators.DevicesChanged{Devices: n}, err)
	for _, blocked := range []bool{true, false} {
		changed, err := c.Devices.SetBlockedMatching(c.ctx, operators.DeviceFilter{Prefix: "c-1"}, blocked, "it smokes", false)
		c.expectResponse("Block devices", changed, err)
		if device, err := c.Devices.Get(c.ctx, "c-1"); err != nil || changed.Devices != 1 || device.Blocked != blocked {
			c.Errorf("blocked %v: %+v changed; %+v, %v", blocked, changed, device, err)
		}
	}
	deleted, err := c.Devices.DeleteMatching(c.ctx, operators.DeviceFilter{Prefix: "c-", RegisteredBy: "nobody"}, operators.Deletion{Refuse: true}, false)
	c.expectResponse("Delete devices", deleted, err)
	if count, err := c.Devices.DeleteMatching(c.ctx, operators.DeviceFilter{Prefix: "c-1"}, operators.Deletion{}, true); err != nil || deleted.Devices != 0 || count.Devices != 1 {
		c.Errorf("deleted %+v, would delete %+v, %v", deleted, count, err)
	}
	blocked, err := c.Devices.Block(c.ctx, "c-1", operators.PauseReason{Reason: "it smokes"})
	c.expectResponse("Block device", blocked, err)
	unblocked, err := c.Devices.Unblock(c.ctx, "c-1")
	c.expectResponse("Unblock device", unblocked, err)
	rotated, err := c.Devices.RotateToken(c.ctx, "c-1", operators.Rotation{OverlapMS: new(int64(60_000))})
	c.expectResponse("RotateToken", rotated, err)
	why, err := c.Devices.Why(c.ctx, "c-1")
	c.expectResponse("Why of a device", why, err)
	device, err := c.Devices.Get(c.ctx, "c-1")
	c.expectResponse("Device", device, err)
	c.expectResponse("Devices", collectAll(c.T, c.Devices.List(c.ctx, operators.DeviceFilter{Tags: []string{"area:sh"}, Blocked: "false"})), nil)
	var tokens bytes.Buffer
	err = c.Devices.Import(c.ctx, strings.NewReader("device,site\nc-2,bj\n"), operators.TypeCSV, "", operators.TypeCSV, &tokens)
	if err != nil || !strings.HasPrefix(tokens.String(), "device,token\nc-2,") {
		c.Errorf("ImportDevices: %v, %q", err, tokens.String())
	}
	c.sendReport("c-1", made.Token)
}

// sendReport sends an empty report of the device.
func (c *checkedClient) sendReport(device, token string) {
	r, err := http.NewRequestWithContext(c.ctx, http.MethodPost, os.Getenv("DISPATCHER_URL")+"/v1/devices/"+device+"/report", strings.NewReader(`{"id":"1"}`))
	must.Succeed(c, err)
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(r)
	must.Succeed(c, err)
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		c.Fatalf("%s: %s", device, answer.Status)
	}
}
