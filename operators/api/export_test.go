package api_test

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// accept sends a GET with this header Accept.
func (b *bench) accept(path, form string) answer {
	b.Helper()
	return b.acceptAs(path, form, adminToken)
}

func (b *bench) acceptAs(path, form, token string) answer {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, b.url+path, http.NoBody)
	if err != nil {
		b.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	request.Header.Set("Accept", form)
	return b.do(request)
}

func (a answer) table() (rows [][]string) {
	a.t.Helper()
	rows, err := csv.NewReader(strings.NewReader(string(a.body))).ReadAll()
	if err != nil {
		a.t.Fatalf("%s: %v: %.300s", a.what, err, a.body)
	}
	return rows
}

func TestListsAreStreamedWhole(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		b.pool("p", `{"capacity":60}`)
		var many []string
		for i := range 2500 {
			many = append(many, fmt.Sprintf("d-%d", i))
		}
		devices, _ := json.Marshal(many)
		b.batch(`{"pool":"p","kind":"k","payload":{"a":[1]},"priority":-5,"devices":` + string(devices) + `}`)
		b.report("d-7", b.granted("d-7").result("rejected", `,"error":"=HYPERLINK(\"http://x\")","output":"@x"`)).must(200)

		answer := b.accept("/v1/tasks?kind=k&page_size=3", csvType).must(200)
		rows := answer.table()
		if answer.header.Get("Content-Type") != csvType || len(rows) != 2501 || rows[1][0] != "1" || rows[2500][0] != "2500" {
			b.Fatalf("%d rows: %.300s", len(rows), answer.body)
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

		lines := strings.Split(strings.TrimSpace(string(b.accept("/v1/tasks", ndjsonType+", */*").must(200).body)), "\n")
		var first, page any
		if err := json.Unmarshal([]byte(lines[0]), &first); err != nil {
			b.Fatal(err)
		}
		page = list(b.get("/v1/tasks?page_size=1").fields(), "tasks")[0]
		if diff := cmp.Diff(page, first); diff != "" || len(lines) != 2500 {
			b.Errorf("%d lines: %s", len(lines), diff)
		}
		for path, want := range map[string][2]string{
			"/v1/pools": {"name", "p"}, "/v1/batches": {"id", "1"}, "/v1/devices": {"id", "d-7"}, "/v1/tasks?state=failed": {"id", "8"},
		} {
			if got := b.accept(path, csvType).must(200).table(); len(got) != 2 || got[0][0] != want[0] || got[1][0] != want[1] {
				b.Errorf("%s: %q", path, got)
			}
		}
		if got := b.accept("/v1/tasks?state=expired", csvType).must(200).table(); len(got) != 1 || got[0][0] != "id" {
			b.Errorf("an empty list still has its header: %q", got)
		}
		if got := b.accept("/v1/tasks?page_size=1", "application/json, text/csv").must(200); got.header.Get("Content-Type") != "application/json" {
			b.Errorf("JSON comes first: %v", got.header)
		}
		b.accept("/v1/tasks?state=running", csvType).problem(422, "invalid_field")
		b.accept("/v1/tasks?page_token=!", csvType).problem(422, "invalid_field")
		request, _ := http.NewRequestWithContext(b.Context(), http.MethodGet, b.url+"/v1/tasks", http.NoBody)
		request.Header.Set("Accept", csvType)
		b.do(request).problem(401, "unauthenticated")
	})
}

// TestAnExportThatFailsHalfWayIsNoWholeExport checks that a client can tell a list that broke off from a complete one.
func TestAnExportThatFailsHalfWayIsNoWholeExport(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", `{"capacity":60}`)
	devices, _ := json.Marshal(slices.Repeat([]string{"d"}, 1500))
	b.batch(`{"pool":"p","devices":` + string(devices) + `}`)
	readings, last := 0, 0
	spoil := func() error {
		if readings++; readings == last {
			return errors.New("down by the test")
		}
		return nil
	}
	b.store.tasks.Store(&spoil)
	for _, form := range []string{csvType, ndjsonType} {
		readings, last = 0, 0
		b.accept("/v1/tasks", form).must(200)
		readings, last = 0, readings
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+"/v1/tasks", http.NoBody)
		request.Header.Set("Authorization", "Bearer "+adminToken)
		request.Header.Set("Accept", form)
		response, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK || len(text) == 0 || err == nil {
			t.Errorf("%s: status %d, %d bytes, error %v: want a page and then an error", form, response.StatusCode, len(text), err)
		}
	}
}

func TestTasksAreCancelledAndRetriedInBulk(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		b.pool("p", `{"capacity":60}`)
		b.batch(`{"pool":"p","kind":"k","max_attempts":1,"devices":["d-1","d-2","d-3"]}`)
		b.report("d-1", b.granted("d-1").result("failed", `,"error":"E7: no route"`)).must(200)
		b.granted("d-2")
		b.batch(newFields)
		bulk := func(call string, tasks, asked float64) {
			b.Helper()
			got := b.call("POST", "/v1/tasks/"+call, adminToken, nil).must(200).fields()
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
		if diff := cmp.Diff([]string{"1", "3"}, b.pages("/v1/tasks?state=pending&batch=1", "tasks", "id")); diff != "" {
			b.Error(diff)
		}
		for _, call := range []string{"cancel", "retry", "cancel?dry_run=true"} {
			b.call("POST", "/v1/tasks/"+call, adminToken, nil).problem(422, "invalid_field").names(b.T, "at least one")
		}
		b.call("POST", "/v1/tasks/cancel?state=running", adminToken, nil).problem(422, "invalid_field")
		b.call("POST", "/v1/tasks/cancel?pool=a%20b", adminToken, nil).problem(400, "invalid_pool")
		b.report("d-3", b.granted("d-3").result("succeeded", "")).must(200)
		b.call("POST", "/v1/tasks/3/retry", adminToken, nil).problem(409, "not_retriable")
		b.call("POST", "/v1/tasks/999/retry", adminToken, nil).problem(404, "not_found")
		if got := b.call("POST", "/v1/tasks/1/retry", adminToken, nil).must(200).fields(); got["state"] != "pending" {
			b.Errorf("pending already: %v", got)
		}
	})
}
