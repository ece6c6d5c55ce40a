package api_test

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
	"github.com/fleetslots/dispatcher/store"
)

const (
	csvType    = "text/csv"
	ndjsonType = "application/x-ndjson"
)

// taskPayloads returns the payload of each task that matches the filter, by the task's device.
func (b *testAPI) taskPayloads(filter string) map[string]any {
	b.Helper()
	got := map[string]any{}
	for _, task := range listField(b.Get("/v1/tasks?"+filter).Expect(200).Object(), "tasks") {
		device, _ := asObject(task)["device"].(string)
		got[device] = asObject(task)["payload"]
	}
	return got
}

// TestBatchBodyHasAKnownType checks that a body of another media type is refused, even if it is valid JSON.
func TestBatchBodyHasAKnownType(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":60}`)
	for _, mediaType := range []string{"text/plain", "application/x+json"} {
		b.sendWithType("POST", "/v1/batches", mediaType, newBatchBody).ExpectProblem(415, "unsupported_media_type", ndjsonType)
	}
	b.sendWithType("POST", "/v1/batches", "application/json; charset=utf-8", newBatchBody).Expect(201)
}

func TestBatchesFromLines(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		want := map[string]any{
			"d-1": map[string]any{"server": "st1", "n": 5.0, "note": "a, \"b\"\nc"},
			"d:2": map[string]any{"server": "st2", "n": map[string]any{"x": 1.0}},
			"d-3": map[string]any{"server": "st1"},
		}
		query := `?pool=p&name=n&kind=k&payload={"server":"st1"}&priority=-2&max_attempts=5&retry_on=failed&not_after=2099-01-01T00:00:00Z`
		query = strings.NewReplacer(`{`, "%7B", `}`, "%7D", `"`, "%22").Replace(query)
		csv := "\ufeffdevice,server,n:json,note\r\nd-1,,5,\"a, \"\"b\"\"\nc\"\r\nd:2,st2,\"{\"\"x\"\":1}\",\r\nd-3,,,\r\n"
		ndjson := `{"device":"d-1","payload":{"n":5,"note":"a, \"b\"\nc"},"priority":7}` + "\n\n" +
			`{"device":"d:2","payload":{"n":{"x":1},"server":"st2"}}` + "\r\n" + `{"device":"d-3"}`
		for i, test := range []struct{ contentType, body string }{{csvType, csv}, {ndjsonType, ndjson}, {"text/csv; charset=utf-8", csv}} {
			made := b.sendWithType("POST", "/v1/batches"+query, test.contentType, test.body).Expect(201).Object()
			if made["id"] != float64(i+1) || made["tasks"] != 3.0 {
				b.Fatalf("%s: %v", test.contentType, made)
			}
			if diff := cmp.Diff(want, b.taskPayloads(fmt.Sprintf("batch=%d", i+1))); diff != "" {
				b.Errorf("%s: %s", test.contentType, diff)
			}
			batch := b.Get(fmt.Sprintf("/v1/batches/%d", i+1)).Expect(200).Object()
			if batch["name"] != "n" || batch["kind"] != "k" || batch["priority"] != -2.0 || batch["max_attempts"] != 5.0 || len(listField(batch, "retry_on")) != 1 || batch["not_after"] == nil {
				b.Errorf("%s: %v", test.contentType, batch)
			}
		}
		if first := b.Get("/v1/tasks/4").Expect(200).Object(); first["priority"] != 7.0 {
			b.Errorf("priority of a line: %v", first)
		}
	})
}

func TestABadLineRefusesTheBatch(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		long := strings.Repeat("x", 130<<10)
		for _, test := range []struct {
			contentType, body, code string
			names                   []string
		}{
			{csvType, "", "invalid_line", []string{"line 1", "header"}},
			{csvType, "dev,a\nd,1\n", "invalid_line", []string{"line 1", "device"}},
			{csvType, "device,a,a\nd,1,2\n", "invalid_line", []string{"line 1", `"a"`}},
			{csvType, "device,a,\nd,1,2\n", "invalid_line", []string{"line 1", `""`}},
			{csvType, "device\n", "no_tasks", nil},
			{csvType, "device,a\nd-1,1\nd-2\n", "invalid_line", []string{"line 3", "number of fields"}},
			{csvType, "device,a\nd-1,\"x\ny\"\nd/2,1\n", "invalid_line", []string{"line 4", "may only contain"}},
			{csvType, "device,a\nd-1,\"x\n", "invalid_line", []string{"line 2", "quote"}},
			{csvType, "device,a:json\nd-1,{\n", "invalid_line", []string{"line 2", "column 2", "JSON"}},
			{csvType, "device,a:json\nd-1,\"\"\"\\u0000\"\"\"\n", "invalid_line", []string{"line 2", "U+0000"}},
			{csvType, "device,a\nd-1,\xff\n", "invalid_line", []string{"line 2", "UTF-8"}},
			{csvType, "device,a\nd-1," + long[:33<<10] + "\n", "invalid_line", []string{"line 2", "32768"}},
			{csvType, "device,a\nd-1,1\nd-2,\"" + long + long + "\n", "invalid_line", []string{"line 3", "longer"}},
			{ndjsonType, "", "no_tasks", nil},
			{ndjsonType, "{\"device\":\"d\"}\n\n{\"device\":\"\"}", "invalid_line", []string{"line 3", "empty"}},
			{ndjsonType, "{\"device\":\"d\",\"prio\":1}", "invalid_line", []string{"line 1", "prio"}},
			{ndjsonType, "{\"device\":\"d\"} {}", "invalid_line", []string{"line 1", "more than one"}},
			{ndjsonType, "{\"device\":\"d\"", "invalid_line", []string{"line 1", "JSON"}},
			{ndjsonType, "{\"device\":\"d\",\"priority\":1000001}", "invalid_line", []string{"line 1", "1000000"}},
			{ndjsonType, "{\"device\":\"d\",\"payload\":\"\\u0000\"}", "invalid_line", []string{"line 1", "U+0000"}},
			{ndjsonType, "{\"device\":\"d\"}\n{\"device\":\"" + long + "\"}", "invalid_line", []string{"line 2", "longer"}},
		} {
			b.sendWithType("POST", "/v1/batches?pool=p", test.contentType, test.body).ExpectProblem(422, test.code, test.names...)
		}
		for query, test := range map[string]struct {
			status int
			code   string
			name   string
		}{
			"":                               {422, "invalid_field", "pool"},
			"?pool=q":                        {422, "unknown_pool", "pool"},
			"?pool=p&max_attempt=1":          {400, "unknown_field", "max_attempt"},
			"?pool=p&devices=a":              {400, "unknown_field", "devices"},
			"?pool=p&max_attempts=many":      {422, "invalid_field", "max_attempts"},
			"?pool=p&max_attempts=0":         {422, "invalid_field", "max_attempts"},
			"?pool=p&retry_on=failed,lapsed": {422, "invalid_field", "retry_on"},
			"?pool=p&unknown_devices=no":     {422, "invalid_field", "unknown_devices"},
			"?pool=p&not_after=tomorrow":     {422, "invalid_field", "not_after"},
			"?pool=p&lease_ms=1000":          {422, "invalid_field", "lease_ms"},
		} {
			b.sendWithType("POST", "/v1/batches"+query, csvType, "device\nd-1\n").ExpectProblem(test.status, test.code, test.name)
		}
		if n := len(b.readPages("/v1/tasks", "tasks", "id")) + len(b.readPages("/v1/batches", "batches", "id")); n != 0 {
			b.Errorf("%d rows after refusals, want none", n)
		}
	})
}

func TestPayloadsLieOverTheSharedOne(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		b.CreateBatch(`{"pool":"p","payload":{"a":1,"b":{"x":1,"z":1}},"tasks":[{"device":"merged","payload":{"a":null,"b":{"y":2,"z":null},"c":12345678901234567890}},
			{"device":"none"},{"device":"text","payload":"t"},{"device":"null","payload":null}]}`)
		b.CreateBatch(`{"pool":"p","payload":"text","tasks":[{"device":"own","payload":{"a":1}}]}`)
		shared := map[string]any{"a": 1.0, "b": map[string]any{"x": 1.0, "z": 1.0}}
		want := map[string]any{
			"merged": map[string]any{"b": map[string]any{"x": 1.0, "y": 2.0}, "c": 12345678901234567890.0},
			"none":   shared, "null": shared, "text": "t", "own": map[string]any{"a": 1.0},
		}
		if diff := cmp.Diff(want, b.taskPayloads("")); diff != "" {
			b.Error(diff)
		}
		if body := string(b.SendReport("merged", `{"id":"x"}`).Expect(200).Body); !strings.Contains(body, `12345678901234567890`) {
			b.Errorf("a number lost digits: %s", body)
		}
		half := `"` + strings.Repeat("x", 20<<10) + `"`
		b.Call("POST", "/v1/batches", adminToken, `{"pool":"p","payload":{"a":`+half+`},"tasks":[{"device":"d","payload":{"b":`+half+`}}]}`).
			ExpectProblem(422, "invalid_field", "tasks[0]", "32768")
	})
}

func TestBatchSelectsDevicesByTag(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		for id, tags := range map[string]string{"a": `{"area":"1","kind":"x"}`, "b": `{"area":"1"}`, "c": `{"area":"2","kind":"x"}`, "d": `{}`} {
			b.Call("POST", "/v1/devices", adminToken, `{"id":"`+id+`","tags":`+tags+`}`).Expect(201)
		}
		post := func(query, tags string) rig.Response {
			b.Helper()
			return b.Call("POST", "/v1/batches"+query, adminToken, `{"pool":"p","payload":7,"priority":3,"select":{"tags":`+tags+`}}`)
		}
		if got := post("?dry_run=true", `{"area":"1"}`).Expect(200).Object(); got["tasks"] != 2.0 || got["id"] != 0.0 {
			b.Errorf("dry run: %v", got)
		}
		if got := post("?dry_run=true", `{"area":"9"}`).Expect(200).Object(); got["tasks"] != 0.0 || !strings.Contains(fmt.Sprint(got["warnings"]), "no registered device has area:9;") {
			b.Errorf("dry run of none: %v", got)
		}
		if n := len(b.readPages("/v1/batches", "batches", "id")); n != 0 {
			b.Errorf("%d batches after dry runs", n)
		}
		first := post("", `{"area":"1"}`).Expect(201).Object()
		post("", `{"area":"2","kind":"x"}`).Expect(201)
		if diff := cmp.Diff(map[string]any{"a": 7.0, "b": 7.0, "c": 7.0}, b.taskPayloads("")); diff != "" {
			b.Error(diff)
		}
		if task := asObject(listField(b.Get("/v1/tasks").Object(), "tasks")[0]); task["priority"] != 3.0 {
			b.Errorf("priority: %v", task)
		}
		b.Call("PATCH", fmt.Sprintf("/v1/batches/%v", first["id"]), adminToken, `{"priority":8}`).Expect(200)
		if task := asObject(listField(b.Get("/v1/tasks").Object(), "tasks")[0]); task["priority"] != 8.0 {
			b.Errorf("the batch's priority is theirs: %v", task)
		}
		post("", `{"area":"9"}`).ExpectProblem(422, "no_tasks", "select.tags", "no registered device has area:9;")
		post("", `{"area":"1","kind":"y"}`).ExpectProblem(422, "no_tasks", "no registered device has all of area:1, kind:y;")
		post("", `{}`).ExpectProblem(422, "invalid_field", "select.tags")
		post("", `{"area":7}`).ExpectProblem(422, "invalid_field", "select.tags")
		b.Call("POST", "/v1/batches", adminToken, `{"pool":"p","devices":["a"],"select":{"tags":{"a":"b"}}}`).ExpectProblem(422, "invalid_field", "exactly one")
	})
}

func TestUnknownDevicesAreRefusedOnDemand(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		b.createDevice("a")
		b.createDevice("b")
		b.Call("POST", "/v1/batches?unknown_devices=refuse", adminToken, `{"pool":"p","devices":["a","z-1","b","z-2"]}`).ExpectProblem(422, "unknown_device", "z-1")
		b.sendWithType("POST", "/v1/batches?pool=p&unknown_devices=refuse", csvType, "device\na\nz-1\n").ExpectProblem(422, "unknown_device", "z-1")
		b.sendWithType("POST", "/v1/batches?pool=p&unknown_devices=refuse&dry_run=true", csvType, "device\nz-1\n").ExpectProblem(422, "unknown_device")
		b.Call("POST", "/v1/batches?unknown_devices=refuse", adminToken, `{"pool":"p","devices":["a","b"]}`).Expect(201)
		b.Call("POST", "/v1/batches?unknown_devices=allow", adminToken, `{"pool":"p","devices":["z-1"]}`).Expect(201)
	})
}

// uploadStore is both a request body and the ledger that receives the batch. It records whether CreateBatch was
// called before the body had ended.
type uploadStore struct {
	*interceptedStore
	next         func() string // returns the next line; an empty string is the end
	rest         string
	bodyEnded    bool
	createdEarly bool
}

func (u *uploadStore) Read(b []byte) (int, error) {
	if u.rest == "" {
		u.rest = u.next()
	}
	if u.bodyEnded = u.rest == ""; u.bodyEnded {
		return 0, io.EOF
	}
	n := copy(b, u.rest)
	u.rest = u.rest[n:]
	return n, nil
}

func (u *uploadStore) CreateBatch(ctx context.Context, actor string, b store.Batch, q store.NewBatchTasks) (store.Batch, error) {
	u.createdEarly = u.createdEarly || !u.bodyEnded
	return u.interceptedStore.CreateBatch(ctx, actor, b, q)
}

// TestAnUploadOpensNoTransaction checks a batch that is uploaded as a stream: the ledger is called only after the
// complete body has arrived. An upload may take as long as the client likes. A transaction that stays open during the
// upload would slow down the claims of all devices.
func TestAnUploadOpensNoTransaction(t *testing.T) {
	t.Parallel()
	b := startOnServers(t)
	b.PutPool("p", `{"capacity":60}`)
	rows := longBatchSize()
	pad := strings.Repeat("x", 200)
	for _, test := range []struct{ contentType, head, line string }{
		{csvType, "device,pad\n", "d-%d," + pad + "\n"},
		{ndjsonType, "", `{"device":"d-%d","payload":{"pad":"` + pad + `"}}` + "\n"},
	} {
		lines := func(yield func(string) bool) {
			more := yield(test.head)
			for n := 0; more && n < rows; n++ {
				more = yield(fmt.Sprintf(test.line, n))
			}
		}
		next, stop := iter.Pull(lines)
		body := &uploadStore{interceptedStore: b.store, next: func() string {
			line, more := next()
			for more && line == "" {
				line, more = next()
			}
			return line
		}}
		handler := rig.Start(t, b.Stores, func(o *rig.Options) { o.API.Store = body }).API.Handler()
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/batches?pool=p", body)
		request.Header.Set("Authorization", "Bearer "+adminToken)
		request.Header.Set("Content-Type", test.contentType)
		request.Header.Set("Idempotency-Key", test.contentType)
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		stop()
		if want := fmt.Sprintf(`"tasks":%d,`, rows); answer.Code != http.StatusCreated || !strings.Contains(answer.Body.String(), want) {
			t.Fatalf("%s: %d: %s", test.contentType, answer.Code, answer.Body)
		}
		if body.createdEarly {
			t.Errorf("%s: the ledger was asked while the body was on its way", test.contentType)
		}
	}
}

// TestALongBodyIsKeptOnDisk checks a streamed batch whose long body is stored in a file. No file is left behind. If
// the file cannot be created, the batch is refused. A short batch needs no file.
func TestALongBodyIsKeptOnDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	room := startEmbedded(t, func(s *rig.Options) { s.API.SpoolDir = dir })
	none := startEmbedded(t, func(s *rig.Options) { s.API.SpoolDir = filepath.Join(dir, "missing") })
	var long strings.Builder
	for n := range 40_000 {
		_, _ = fmt.Fprintf(&long, "device-with-a-long-name-%d\n", n) // a strings.Builder accepts all writes
	}
	for _, b := range []*testAPI{room, none} {
		b.PutPool("p", `{"capacity":60}`)
		b.sendWithType("POST", "/v1/batches?pool=p", csvType, "device\nd-1\n").Expect(201)
	}
	if got := room.sendWithType("POST", "/v1/batches?pool=p", csvType, "device\n"+long.String()).Expect(201).Object(); got["tasks"] != 40_000.0 {
		t.Errorf("%v", got)
	}
	none.sendWithType("POST", "/v1/batches?pool=p", csvType, "device\n"+long.String()).ExpectProblem(507, "no_room", "body")
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if n := len(none.readPages("/v1/batches", "batches", "id")); n != 1 {
		t.Errorf("%d batches, want the short one", n)
	}
}
