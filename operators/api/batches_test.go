package api_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// batchCounts returns the state and the counts of a batch. It checks that the sum of the counts is the total of the
// batch.
func (b *testAPI) batchCounts(id int64) (state string, counts map[string]any) {
	b.Helper()
	batch := b.Get(fmt.Sprintf("/v1/batches/%d", id)).Expect(200).Object()
	counts = asObject(batch["counts"])
	sum := 0.0
	for _, n := range counts {
		count, _ := n.(float64)
		sum += count
	}
	if len(counts) != 8 || sum != batch["total"] {
		b.Errorf("counts %v add up to %v, total %v", counts, sum, batch["total"])
	}
	state, _ = batch["state"].(string)
	return state, counts
}

func TestBatchRunsThroughItsStates(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		id := b.CreateBatch(`{"name":"n","pool":"p","kind":"k","payload":{"a":1},"max_attempts":1,"devices":["d-1","d-2","d-3"]}`)
		expect := func(wantState string, want map[string]any) {
			b.Helper()
			state, counts := b.batchCounts(id)
			for _, name := range []string{"pending", "dispatched", "succeeded", "failed", "timed_out", "cancelled", "expired", "suppressed"} {
				if want[name] == nil {
					want[name] = 0.0
				}
			}
			if diff := cmp.Diff(want, counts); diff != "" || state != wantState {
				b.Errorf("state %s, want %s: %s", state, wantState, diff)
			}
		}
		expect("running", map[string]any{"pending": 3.0})
		g := b.ReportUntilGranted("d-1")
		expect("running", map[string]any{"pending": 2.0, "dispatched": 1.0})
		b.SendReport("d-1", g.Result("succeeded", "")).Expect(200)
		expect("running", map[string]any{"pending": 2.0, "succeeded": 1.0})
		b.SendReport("d-2", b.ReportUntilGranted("d-2").Result("failed", "")).Expect(200)
		b.Call("POST", fmt.Sprintf("/v1/tasks/%d/cancel", g.ID+2), adminToken, nil).Expect(200)
		expect("finished", map[string]any{"succeeded": 1.0, "failed": 1.0, "cancelled": 1.0})

		id = b.CreateBatch(`{"pool":"p","not_before":"2999-01-01T00:00:00.000Z","devices":["d-1"]}`)
		expect("scheduled", map[string]any{"pending": 1.0})
		b.Get("/v1/batches/9007199254740991").ExpectProblem(404, "not_found")
	})
}

func TestBatchTakesDefaults(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		b.CreateBatch(`{"pool":"p","devices":["d-1"],"name":"","on_lost":"","retry_on":[],"weight":null,"not_after":null,"tasks":null}`)
		got := b.Get("/v1/batches/1").Expect(200).Object()
		delete(got, "created_at")
		delete(got, "counts")
		want := map[string]any{
			"id": 1.0, "name": "", "pool": "p", "kind": "", "state": "running", "condition": "running", "priority": 0.0, "weight": 1.0, "lane": "normal", "system": false,
			"not_before": nil, "not_after": nil, "max_wait_ms": 0.0, "max_attempts": 3.0, "retry_on": []any{"failed", "timed_out"},
			"retry_backoff_ms": 10000.0, "on_lost": "retry", "total": 1.0, "rate_per_minute": 0.0, "eta": nil,
			"windows": []any{}, "limits": []any{}, "finish_inside": true, "opens_at": nil, "closes_at": nil,
			"lease_ms": 0.0, "max_run_ms": 0.0, "paused_by": "", "paused_at": nil, "pause_reason": "",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			b.Error(diff)
		}
	})
}

// badBody is an invalid request body, with the status, the code and the texts that the problem must have.
type badBody struct {
	body     string
	status   int
	code     string
	mentions []string
}

func (b *testAPI) expectRefused(method, path string, all []badBody) {
	b.Helper()
	for _, r := range all {
		b.Call(method, path, adminToken, r.body).ExpectProblem(r.status, r.code, r.mentions...)
	}
}

func badBatches() []badBody {
	return []badBody{
		{`{"pool":"p"}`, 422, "invalid_field", []string{"devices", "tasks"}},
		{`{"pool":"p","devices":[],"tasks":[]}`, 422, "invalid_field", []string{"devices", "tasks"}},
		{`{"pool":"p","devices":["d"],"tasks":[{"device":"d"}]}`, 422, "invalid_field", []string{"exactly one"}},
		{`{"devices":["d"]}`, 422, "invalid_field", []string{"pool"}},
		{`{"pool":"","devices":["d"]}`, 422, "invalid_field", []string{"pool"}},
		{`{"pool":"q","devices":["d"]}`, 422, "unknown_pool", []string{"pool"}},
		{`{"pool":"p/../q","devices":["d"]}`, 422, "unknown_pool", []string{"pool"}},
		{`{"pool":"p","devices":["a","b","c/d"]}`, 422, "invalid_field", []string{"devices[2]", "may only contain"}},
		{`{"pool":"p","devices":["a","","b"]}`, 422, "invalid_field", []string{"devices[1]", "empty"}},
		{`{"pool":"p","devices":["a",7]}`, 422, "invalid_field", []string{"devices[1]", "string"}},
		{`{"pool":"p","devices":["a",null]}`, 422, "invalid_field", []string{"devices[1]"}},
		{`{"pool":"p","devices":"a"}`, 422, "invalid_field", []string{"devices", "array"}},
		{`{"pool":"p","devices":["` + strings.Repeat("d", 129) + `"]}`, 422, "invalid_field", []string{"devices[0]", "128"}},
		{`{"pool":"p","tasks":[{"device":"a"},{"device":"#"}]}`, 422, "invalid_field", []string{"tasks[1]"}},
		{`{"pool":"p","tasks":[{"device":"a"},{}]}`, 422, "invalid_field", []string{"device"}},
		{`{"pool":"p","tasks":[{"device":"a","prio":1}]}`, 400, "unknown_field", []string{"tasks[0].prio"}},
		{`{"pool":"p","tasks":[{"device":"a","payload":"` + strings.Repeat("x", 32<<10) + `"}]}`, 422, "invalid_field", []string{"tasks[0]", "payload", "32768"}},
		{`{"pool":"p","payload":"` + strings.Repeat("x", 32<<10) + `","devices":["a"]}`, 422, "payload_too_large", []string{"payload", "32768"}},
		{`{"pool":"p","devices":["a"],"not_before":"2027-01-01T00:00:00Z","not_after":"2027-01-01T00:00:00Z"}`, 422, "invalid_field", []string{"not_after", "not_before"}},
		{`{"pool":"p","devices":["a"],"not_after":"tomorrow"}`, 422, "invalid_field", []string{"not_after"}},
		{`{"pool":"p","devices":["a"],"not_after":5}`, 422, "invalid_field", []string{"not_after"}},
		{`{"pool":"p","devices":["a"],"weight":1001}`, 422, "invalid_field", []string{"weight", "1000"}},
		{`{"pool":"p","devices":["a"],"max_attempts":0}`, 422, "invalid_field", []string{"max_attempts"}},
		{`{"pool":"p","devices":["a"],"max_attempts":101}`, 422, "invalid_field", []string{"max_attempts", "100"}},
		{`{"pool":"p","devices":["a"],"retry_on":["returned"]}`, 422, "invalid_field", []string{"retry_on[0]"}},
		{`{"pool":"p","devices":["a"],"retry_backoff_ms":-1}`, 422, "invalid_field", []string{"retry_backoff_ms"}},
		{`{"pool":"p","devices":["a"],"on_lost":"panic"}`, 422, "invalid_field", []string{"on_lost"}},
		{`{"pool":"p","devices":["a"],"lease_ms":1000}`, 422, "invalid_field", []string{"lease_ms", "2000"}},
		{`{"pool":"p","devices":["a"],"abort":{"failure":0}}`, 422, "invalid_field", []string{"abort.failure"}},
		{`{"pool":"p","devices":["a"],"abort":{"failure":1.01}}`, 422, "invalid_field", []string{"abort.failure"}},
		{`{"pool":"p","devices":["a"],"abort":{"failure":0.5,"min":0}}`, 422, "invalid_field", []string{"abort.min"}},
		{`{"pool":"p","devices":["a"],"abort":{"min":5}}`, 422, "invalid_field", []string{"failure"}},
		{`{"pool":"p","devices":["a"],"max_run_ms":0}`, 422, "invalid_field", []string{"max_run_ms"}},
		{`{"pool":"p","devices":["a"],"priority":99999999999999999999}`, 422, "invalid_field", []string{"priority"}},
		{`{"pool":"p","devices":["a"],"name":"` + strings.Repeat("x", 201) + `"}`, 422, "invalid_field", []string{"name", "200"}},
		{`{"pool":"p","devices":["a"],"name":"a\u0000b"}`, 400, "invalid_request", []string{"U+0000"}},
		{`{"pool":"p","devices":["a"],"payload":{"a\u0000":1}}`, 400, "invalid_request", []string{"U+0000"}},
		{"{\"pool\":\"p\",\"devices\":[\"a\"],\"payload\":[\"\xff\"]}", 400, "invalid_request", []string{"UTF-8"}},
		{`{"pool":"p","devices":["a"],"payload":1e400}`, 400, "invalid_request", nil},
		{`{"pool":"p","devices":["a"],"select":{"tags":{}}}`, 422, "invalid_field", []string{"select.tags"}},
		{`{"pool":"p","devices":["a"],"windows":[{"cron":"x","duration":"1h"}]}`, 422, "invalid_field", []string{"windows[0].cron"}},
		{`{"pool":"p","devices":["a"]} {}`, 400, "invalid_request", nil},
		{``, 400, "invalid_request", nil},
	}
}

func TestBadBatchesAreRefusedWhole(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		b.expectRefused("POST", "/v1/batches", badBatches())
		for _, id := range []string{"0", "-1", "abc", "1.5", "9007199254740992", "99999999999999999999"} {
			b.Get("/v1/batches/"+id).ExpectProblem(422, "invalid_field", "id")
		}
		b.expectPageErrors("/v1/batches")
		if batches := listField(b.Get("/v1/batches").Object(), "batches"); len(batches) != 0 {
			b.Errorf("%d batches after refusals, want none", len(batches))
		}
		if tasks := listField(b.Get("/v1/tasks").Object(), "tasks"); len(tasks) != 0 {
			b.Errorf("%d tasks after refusals, want none", len(tasks))
		}
	})
}

func TestPayloadsComeBackByteForByte(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		for i, payload := range []string{
			`{"b":1,  "a":[1.0,1e2,"\u00fc\ud83d\ude00"],"b":2}`, `"` + strings.Repeat("x", 32<<10-2) + `"`, `0`, `false`, `"\ud800"`, `[{}]`, `""`,
		} {
			device := fmt.Sprintf("d-%d", i)
			b.CreateBatch(`{"pool":"p","tasks":[{"device":"` + device + `","payload":` + payload + `}]}`)
			if body := b.SendReport(device, `{"id":"x"}`).Expect(200).Body; !strings.Contains(string(body), `"payload":`+removeSpaces(payload)+`,`) {
				b.Errorf("payload %.60s came as %.200s", payload, body)
			}
		}
	})
}

// removeSpaces removes the spaces from a JSON text, as encoding it does.
func removeSpaces(text string) string { return strings.ReplaceAll(text, " ", "") }

// A large batch is queued on Postgres, or a batch of 10,000 tasks on SQLite. This takes only seconds.
func TestABatchOfManyDevicesIsQueuedInSeconds(t *testing.T) {
	t.Parallel()
	t.Run("servers", func(t *testing.T) {
		t.Parallel()
		startOnServers(t).expectQuickBatch(longBatchSize())
	})
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		startEmbedded(t).expectQuickBatch(10_000)
	})
}

// longBatchSize is the number of tasks of a long batch. With -short it is a tenth of that.
func longBatchSize() int {
	if testing.Short() {
		return 10_000
	}
	return 100_000
}

func (b *testAPI) expectQuickBatch(size int) {
	b.Helper()
	b.PutPool("p", `{"capacity":60}`)
	var body strings.Builder
	body.WriteString(`{"pool":"p","devices":["d-0"`)
	for i := 1; i < size; i++ {
		fmt.Fprintf(&body, `,"d-%d"`, i)
	}
	body.WriteString(`]}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	started := time.Now()
	id := b.CreateBatch(body.String())
	took := time.Since(started)
	runtime.ReadMemStats(&after)
	b.Logf("%d devices in one request: %v, %d MiB allocated in all", size, took, (after.TotalAlloc-before.TotalAlloc)>>20)
	if state, counts := b.batchCounts(id); state != "running" || counts["pending"] != float64(size) {
		b.Errorf("%s %v", state, counts)
	}
	if took > time.Minute {
		b.Errorf("took %v", took)
	}
}

// TestBatchBodyIsBounded checks that the size of a request body that is held in memory is limited.
func TestBatchBodyIsBounded(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: the limit is 64 MiB; make test-long runs it")
	}
	b := startEmbedded(t)
	spaces := strings.NewReader(`{"pool":"p","devices":["d"]` + strings.Repeat(" ", 64<<20))
	b.Call("POST", "/v1/batches", adminToken, spaces).ExpectProblem(413, "body_too_large")
}

func TestBatchesArePagedNewestFirst(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		for range 5 {
			b.CreateBatch(newBatchBody)
		}
		if diff := cmp.Diff([]string{"5", "4", "3", "2", "1"}, b.readPages("/v1/batches", "batches", "id")); diff != "" {
			b.Error(diff)
		}
		b.PutPool("q", `{"capacity":60}`)
		b.CreateBatch(`{"pool":"q","kind":"other","devices":["d-1"]}`)
		b.CreateBatch(`{"pool":"p","kind":"other","devices":["d-1"]}`)
		for filter, want := range map[string][]string{"pool=q": {"6"}, "kind=other": {"7", "6"}, "pool=p": {"7", "5", "4", "3", "2", "1"}, "pool=r": nil} {
			if diff := cmp.Diff(want, b.readPages("/v1/batches?"+filter, "batches", "id")); diff != "" {
				b.Errorf("%s: %s", filter, diff)
			}
		}
		b.Get("/v1/batches?pool=p&kind=other").ExpectProblem(422, "invalid_field")
	})
}
