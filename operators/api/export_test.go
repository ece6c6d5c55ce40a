package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
)

// getWithAccept sends a GET request with this value of the header Accept.
func (b *testAPI) getWithAccept(path, mediaType string) rig.Response {
	b.Helper()
	return b.getWithAcceptToken(path, mediaType, adminToken)
}

func (b *testAPI) getWithAcceptToken(path, mediaType, token string) rig.Response {
	b.Helper()
	header := http.Header{"Accept": {mediaType}}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	return b.Send(http.MethodGet, path, header, nil)
}

func TestListsAreStreamedWhole(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		var many []string
		for i := range 2500 {
			many = append(many, fmt.Sprintf("d-%d", i))
		}
		devices, _ := json.Marshal(many)
		b.CreateBatch(`{"pool":"p","kind":"k","payload":{"a":[1]},"priority":-5,"devices":` + string(devices) + `}`)
		b.SendReport("d-7", b.ReportUntilGranted("d-7").Result("rejected", `,"error":"=HYPERLINK(\"http://x\")","output":"@x"`)).Expect(200)

		answer := b.getWithAccept("/v1/tasks?kind=k&page_size=3", csvType).Expect(200)
		rows := answer.CSVRows()
		if answer.Header.Get("Content-Type") != csvType || len(rows) != 2501 || rows[1][0] != "1" || rows[2500][0] != "2500" {
			b.Fatalf("%d rows: %.300s", len(rows), answer.Body)
		}
		column := func(name string) int { return slices.Index(rows[0], name) }
		eighth := rows[8]
		for name, want := range map[string]string{
			"id": "8", "device": "d-7", "payload": `{"a":[1]}`, "priority": "-5", "state": "failed", "retry_at": "",
			"output": "'@x", "error": `'=HYPERLINK("http://x")`,
		} {
			if i := column(name); i < 0 || eighth[i] != want {
				b.Errorf("%s: column %d of %q", name, i, eighth)
			}
		}

		lines := strings.Split(strings.TrimSpace(string(b.getWithAccept("/v1/tasks", ndjsonType+", */*").Expect(200).Body)), "\n")
		var first, page any
		b.Must(json.Unmarshal([]byte(lines[0]), &first))
		page = listField(b.Get("/v1/tasks?page_size=1").Object(), "tasks")[0]
		if diff := cmp.Diff(page, first); diff != "" || len(lines) != 2500 {
			b.Errorf("%d lines: %s", len(lines), diff)
		}
		for path, want := range map[string][2]string{
			"/v1/pools": {"name", "p"}, "/v1/batches": {"id", "1"}, "/v1/devices": {"id", "d-7"}, "/v1/tasks?state=failed": {"id", "8"},
		} {
			if got := b.getWithAccept(path, csvType).Expect(200).CSVRows(); len(got) != 2 || got[0][0] != want[0] || got[1][0] != want[1] {
				b.Errorf("%s: %q", path, got)
			}
		}
		if got := b.getWithAccept("/v1/tasks?state=expired", csvType).Expect(200).CSVRows(); len(got) != 1 || got[0][0] != "id" {
			b.Errorf("an empty list still has its header: %q", got)
		}
		if got := b.getWithAccept("/v1/tasks?page_size=1", "application/json, text/csv").Expect(200); got.Header.Get("Content-Type") != "application/json" {
			b.Errorf("JSON comes first: %v", got.Header)
		}
		b.getWithAccept("/v1/tasks?state=running", csvType).ExpectProblem(422, "invalid_field")
		b.getWithAccept("/v1/tasks?page_token=!", csvType).ExpectProblem(422, "invalid_field")
		request, _ := http.NewRequestWithContext(b.Context(), http.MethodGet, b.URL+"/v1/tasks", http.NoBody)
		request.Header.Set("Accept", csvType)
		b.DoRequest(request).ExpectProblem(401, "unauthenticated")
	})
}

// TestAnExportThatFailsHalfWayIsNoWholeExport checks an export of a list that breaks off: a client can distinguish
// it from a complete one.
func TestAnExportThatFailsHalfWayIsNoWholeExport(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":60}`)
	devices, _ := json.Marshal(slices.Repeat([]string{"d"}, 1500))
	b.CreateBatch(`{"pool":"p","devices":` + string(devices) + `}`)
	readings, last := 0, 0
	spoil := func() error {
		if readings++; readings == last {
			return errors.New("down by the test")
		}
		return nil
	}
	b.store.beforeTasks.Store(&spoil)
	for _, form := range []string{csvType, ndjsonType} {
		readings, last = 0, 0
		b.getWithAccept("/v1/tasks", form).Expect(200)
		readings, last = 0, readings
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, b.URL+"/v1/tasks", http.NoBody)
		request.Header.Set("Authorization", "Bearer "+adminToken)
		request.Header.Set("Accept", form)
		response, err := http.DefaultTransport.RoundTrip(request)
		b.Must(err)
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK || len(text) == 0 || err == nil {
			t.Errorf("%s: status %d, %d bytes, error %v: want a page and then an error", form, response.StatusCode, len(text), err)
		}
	}
}

func TestTasksAreCancelledAndRetriedInBulk(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		b.CreateBatch(`{"pool":"p","kind":"k","max_attempts":1,"devices":["d-1","d-2","d-3"]}`)
		b.SendReport("d-1", b.ReportUntilGranted("d-1").Result("failed", `,"error":"E7: no route"`)).Expect(200)
		b.ReportUntilGranted("d-2")
		b.CreateBatch(newBatchBody)
		bulk := func(call string, tasks, asked float64) {
			b.Helper()
			got := b.Call("POST", "/v1/tasks/"+call, adminToken, nil).Expect(200).Object()
			if diff := cmp.Diff(map[string]any{"tasks": tasks, "asked": asked, "more": false}, got); diff != "" {
				b.Errorf("%s: %s", call, diff)
			}
		}
		bulk("cancel?kind=k&dry_run=true", 2, 0)
		bulk("cancel?kind=k", 1, 1)
		bulk("cancel?kind=k", 0, 0)
		bulk("retry?error=E7*&dry_run=true", 1, 0)
		bulk("retry?error=E7*", 1, 0)
		bulk("retry?batch=1&state=cancelled", 1, 0)
		if diff := cmp.Diff([]string{"1", "3"}, b.readPages("/v1/tasks?state=pending&batch=1", "tasks", "id")); diff != "" {
			b.Error(diff)
		}
		for _, call := range []string{"cancel", "retry", "cancel?dry_run=true"} {
			b.Call("POST", "/v1/tasks/"+call, adminToken, nil).ExpectProblem(422, "invalid_field", "at least one")
		}
		b.Call("POST", "/v1/tasks/cancel?state=running", adminToken, nil).ExpectProblem(422, "invalid_field")
		b.Call("POST", "/v1/tasks/cancel?pool=a%20b", adminToken, nil).ExpectProblem(400, "invalid_pool")
		b.SendReport("d-3", b.ReportUntilGranted("d-3").Result("succeeded", "")).Expect(200)
		b.Call("POST", "/v1/tasks/3/retry", adminToken, nil).ExpectProblem(409, "not_retriable")
		b.Call("POST", "/v1/tasks/999/retry", adminToken, nil).ExpectProblem(404, "not_found")
		if got := b.Call("POST", "/v1/tasks/1/retry", adminToken, nil).Expect(200).Object(); got["state"] != "pending" {
			b.Errorf("pending already: %v", got)
		}
	})
}
