package api_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

func TestTasksAreFilteredAndPaged(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		b.PutPool("q", `{"capacity":60}`)
		b.CreateBatch(`{"pool":"p","kind":"one","devices":["d-1","d-2","d:3"]}`)
		b.CreateBatch(`{"pool":"q","kind":"two","devices":["d-1","d-4"]}`)
		b.SendReport("d-4", b.ReportUntilGranted("d-4").Result("succeeded", "")).Expect(200)
		b.ReportUntilGranted("d-2")
		for filter, want := range map[string][]string{
			"":                       {"1", "2", "3", "4", "5"},
			"device=d-1":             {"1", "4"},
			"device=d%3A3":           {"3"},
			"device=d:3":             {"3"},
			"device=nobody":          nil,
			"batch=2":                {"4", "5"},
			"batch=77":               nil,
			"pool=p":                 {"1", "2", "3"},
			"pool=q&device=d-1":      {"4"},
			"state=pending":          {"1", "3", "4"},
			"state=dispatched":       {"2"},
			"state=succeeded":        {"5"},
			"state=expired":          nil,
			"kind=two&state=pending": {"4"},
			"kind=%27%20OR%201%3D1":  nil,
		} {
			newest := slices.Clone(want)
			slices.Reverse(newest)
			if diff := cmp.Diff(newest, b.readPages("/v1/tasks?order=newest&"+filter, "tasks", "id")); diff != "" {
				b.Errorf("%s, newest first: %s", filter, diff)
			}
			if diff := cmp.Diff(want, b.readPages("/v1/tasks?"+filter, "tasks", "id")); diff != "" {
				b.Errorf("%s: %s", filter, diff)
			}
		}
		b.expectPageErrors("/v1/tasks")
		for query, code := range map[string]string{
			"state=running": "invalid_field", "batch=x": "invalid_field", "batch=-1": "invalid_field", "batch=9007199254740992": "invalid_field",
			"device=a/b": "invalid_device_id", "device=%23": "invalid_device_id", "pool=a%20b": "invalid_pool",
		} {
			status := 422
			if strings.HasPrefix(code, "invalid_d") || strings.HasPrefix(code, "invalid_p") {
				status = 400
			}
			b.Get("/v1/tasks?"+query).ExpectProblem(status, code)
		}
		b.Get("/v1/tasks?kind=%00").ExpectProblem(400, "invalid_request")
		b.Get("/v1/tasks?kind=%FF").ExpectProblem(400, "invalid_request")
	})
}

func TestTaskShowsItsAttemptsAndGrant(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		b.CreateBatch(`{"pool":"p","kind":"k","payload":{"a":1},"priority":3,"retry_backoff_ms":0,"devices":["d-1"]}`)
		first := b.ReportUntilGranted("d-1")
		b.SendReport("d-1", first.Result("failed", `,"output":{"n":1},"error":"broken"`)).Expect(200)
		second := b.ReportUntilGranted("d-1")
		got := b.Get(fmt.Sprintf("/v1/tasks/%d", first.ID)).Expect(200).Object()
		grant := asObject(got["grant"])
		if got["state"] != "dispatched" || grant["token"] != float64(second.Token) || grant["attempt"] != 2.0 || grant["slot"] != float64(second.Slot) || grant["lease_until"] == nil {
			b.Errorf("the second attempt runs: %v", got)
		}
		attempts := listField(got, "attempts")
		if len(attempts) != 1 {
			b.Fatalf("%d attempts, want 1: %v", len(attempts), got)
		}
		attempt := asObject(attempts[0])
		delete(attempt, "granted_at")
		delete(attempt, "ended_at")
		want := map[string]any{
			"attempt": 1.0, "token": float64(first.Token), "device": "d-1", "slot": float64(first.Slot), "ended_by": "failed",
			"output": map[string]any{"n": 1.0}, "error": "broken",
		}
		if diff := cmp.Diff(want, attempt); diff != "" {
			b.Error(diff)
		}
		b.SendReport("d-1", second.Result("succeeded", `,"output":7`)).Expect(200)
		got = b.Get(fmt.Sprintf("/v1/tasks/%d", first.ID)).Expect(200).Object()
		if attempts := listField(got, "attempts"); len(attempts) != 2 || got["grant"] != nil || got["state"] != "succeeded" || got["output"] != 7.0 || got["finished_at"] == nil || got["attempts_counted"] != 2.0 {
			b.Errorf("ended: %v", got)
		}
	})
}

func TestTaskIsCancelled(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		b.CreateBatch(newBatchBody)
		g := b.ReportUntilGranted("d-1")
		cancel := func(id int64) map[string]any {
			b.Helper()
			return b.Call("POST", fmt.Sprintf("/v1/tasks/%d/cancel", id), adminToken, nil).Expect(200).Object()
		}
		if got := cancel(g.ID + 1); got["state"] != "cancelled" || got["finished_at"] == nil {
			b.Errorf("a waiting task: %v", got)
		}
		if got := cancel(g.ID); got["state"] != "dispatched" {
			b.Errorf("a running task goes on until its device hears of it: %v", got)
		}
		reply := string(b.SendReport("d-1", fmt.Sprintf(`{"id":"c","running":[{"task":%d,"token":%d}]}`, g.ID, g.Token)).Expect(200).Body)
		if !strings.Contains(reply, `"why":"cancelled"`) || strings.Contains(reply, `"renewed"`) {
			b.Errorf("the device is not told to stop: %s", reply)
		}
		b.SendReport("d-1", g.Result("failed", "")).Expect(200)
		if got := cancel(g.ID); got["state"] != "cancelled" {
			b.Errorf("cancelled again after the end: %v", got)
		}
		for _, id := range []string{"0", "-1", "abc", "9007199254740992"} {
			b.Get("/v1/tasks/"+id).ExpectProblem(422, "invalid_field", "id")
			b.Call("POST", "/v1/tasks/"+id+"/cancel", adminToken, nil).ExpectProblem(422, "invalid_field")
		}
		b.Get("/v1/tasks/9007199254740991").ExpectProblem(404, "not_found")
		b.Call("POST", "/v1/tasks/9007199254740991/cancel", adminToken, nil).ExpectProblem(404, "not_found")
	})
}

// A list contains only rare entries that match. A client that follows the page tokens finds them behind pages
// without entries.
func TestEmptyPagesHaveATokenUntilTheEnd(t *testing.T) {
	t.Parallel()
	b := startOnServers(t)
	b.PutPool("p", `{"capacity":1}`)
	b.CreateBatch(newBatchBody)
	for _, query := range []string{
		`INSERT INTO tasks (batch, pool, device, state) SELECT 1, 'p', 'd-1', 'succeeded' FROM generate_series(3, 120000)`,
		`UPDATE tasks SET state = 'failed', error = 'rare' WHERE id = 110000`,
	} {
		_, err := b.openLedgerDB().ExecContext(t.Context(), query)
		must.Succeed(t, err)
	}
	token, pages, found := "", 0, []any{}
	for {
		pages++
		page := b.Get("/v1/tasks?error=rare&page_token=" + token).Expect(200).Object()
		found = append(found, listField(page, "tasks")...)
		var more bool
		if token, more = page["next_page_token"].(string); !more {
			break
		}
	}
	if pages != 3 || len(found) != 1 || asObject(found[0])["id"] != 110000.0 {
		t.Errorf("%d pages, found %v", pages, found)
	}
	if got := b.Call("POST", "/v1/tasks/retry?error=rare", adminToken, nil).Expect(200).Object(); got["tasks"] != 1.0 || got["more"] != false {
		t.Errorf("tried again: %v", got)
	}
}
