package api_test

import (
	"fmt"
	"strings"
	"testing"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
)

// callBatchOperation calls an operation (such as pause) of the batch and returns the batch from the response.
func (b *testAPI) callBatchOperation(id int64, action, body string) map[string]any {
	b.Helper()
	var with any
	if body != "" {
		with = body
	}
	return b.Call("POST", fmt.Sprintf("/v1/batches/%d/%s", id, action), adminToken, with).Expect(200).Object()
}

func TestBatchIsPausedResumedAndCancelled(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":3}`)
		id := b.CreateBatch(`{"pool":"p","devices":["d-1","d-2","d-3"]}`)
		first := b.ReportUntilGranted("d-1")
		paused := b.callBatchOperation(id, "pause", `{"reason":"too slow"}`)
		if paused["state"] != "paused" || paused["paused_by"] != "bootstrap" || paused["pause_reason"] != "too slow" || paused["paused_at"] == nil {
			b.Errorf("paused: %v", paused)
		}
		var reply deviceReply
		b.SendReport("d-2", `{"id":"x"}`).Expect(200).Decode(&reply)
		if reply.Reason != "paused" {
			b.Errorf("reason %s while paused", reply.Reason)
		}
		resumed := b.callBatchOperation(id, "resume", "")
		if resumed["state"] != "running" || resumed["paused_by"] != "" || resumed["pause_reason"] != "" || resumed["paused_at"] != nil {
			b.Errorf("resumed: %v", resumed)
		}
		b.ReportUntilGranted("d-2")
		if again := b.callBatchOperation(id, "pause", ""); again["state"] != "paused" || again["pause_reason"] != "" { // without a body there is no reason
			b.Errorf("paused: %v", again)
		}
		if cancelled := b.callBatchOperation(id, "cancel", ""); cancelled["state"] != "cancelling" {
			b.Errorf("cancelled: %v", cancelled)
		}
		if n, err := b.Dispatcher.Upkeep.EndCancelledTasks(b.Context()); n != 1 || err != nil {
			b.Errorf("ended %d (%v), want the one that waits", n, err)
		}
		var told struct {
			Reason string
			Cancel []struct {
				Task int64
				Why  string
			}
		}
		b.SendReport("d-1", fmt.Sprintf(`{"id":"x","running":[{"task":%d,"token":%d}]}`, first.ID, first.Token)).Expect(200).Decode(&told)
		if len(told.Cancel) != 1 || told.Cancel[0].Task != first.ID || told.Cancel[0].Why != "cancelled" {
			b.Errorf("the device that runs is told %+v", told)
		}
		b.SendReport("d-1", first.Result("failed", "")).Expect(200)
		if state, counts := b.batchCounts(id); state != "cancelling" || counts["cancelled"] != 2.0 || counts["dispatched"] != 1.0 {
			b.Errorf("%s %v while one runs", state, counts)
		}
		b.SendReport("d-2", `{"id":"x"}`).Expect(200).Decode(&told)
		if len(told.Cancel) != 1 || told.Reason != "busy" {
			b.Errorf("the device that lost its reply is told %+v", told)
		}
		second := told.Cancel[0].Task
		token := b.Get(fmt.Sprintf("/v1/tasks/%d", second)).Expect(200).Object()
		g := rig.Grant{ID: second, Token: int64(asNumber(asObject(token["grant"])["token"]))}
		b.SendReport("d-2", g.Result("succeeded", "")).Expect(200)
		if state, counts := b.batchCounts(id); state != "cancelled" || counts["succeeded"] != 1.0 {
			b.Errorf("%s %v in the end", state, counts)
		}
	})
}

func asNumber(value any) float64 {
	n, _ := value.(float64)
	return n
}

func TestBatchIsPatched(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		id := b.CreateBatch(`{"pool":"p","devices":["d-1"],"priority":4,"weight":5,"max_attempts":6,"not_before":"2097-01-01T00:00:00Z","not_after":"2098-01-01T00:00:00Z"}`)
		path := fmt.Sprintf("/v1/batches/%d", id)
		shown := func(batch map[string]any) string {
			return fmt.Sprint(batch["priority"], batch["weight"], batch["max_attempts"], " ", batch["not_after"])
		}
		for _, test := range []struct{ body, want string }{
			{`{}`, "4 5 6 2098-01-01T00:00:00.000Z"},
			{`{"priority":-7}`, "-7 5 6 2098-01-01T00:00:00.000Z"},
			{`{"weight":2,"max_attempts":1,"not_after":"2099-01-01T00:00:00Z"}`, "-7 2 1 2099-01-01T00:00:00.000Z"},
			{`{"not_after":""}`, "-7 2 1 <nil>"}, // an empty string means the same as null
			{`{"priority":null,"weight":null,"max_attempts":null,"not_after":null}`, "0 1 3 <nil>"},
		} {
			if got := shown(b.Call("PATCH", path, adminToken, test.body).Expect(200).Object()); got != test.want {
				b.Errorf("%s: %s, want %s", test.body, got, test.want)
			}
		}
		b.expectRefused("PATCH", path, []badBody{
			{`{"priority":1000001}`, 422, "invalid_field", []string{"priority", "1000000"}},
			{`{"weight":0}`, 422, "invalid_field", []string{"weight"}},
			{`{"weight":"2"}`, 422, "invalid_field", []string{"weight"}},
			{`{"max_attempts":101}`, 422, "invalid_field", []string{"max_attempts"}},
			{`{"not_after":"2096-12-31T00:00:00Z"}`, 422, "invalid_field", []string{"not_after", "not_before"}},
			{`{"not_after":"soon"}`, 422, "invalid_field", []string{"not_after"}},
			{`{"name":"x"}`, 400, "unknown_field", []string{"name"}},
			{`[]`, 422, "invalid_field", nil},
			{``, 400, "invalid_request", nil},
		})
		b.Call("PATCH", "/v1/batches/99", adminToken, `{}`).ExpectProblem(404, "not_found")
		for _, what := range []string{"pause", "resume", "cancel"} {
			b.Call("POST", "/v1/batches/99/"+what, adminToken, nil).ExpectProblem(404, "not_found")
		}
		b.Call("POST", "/v1/batches/1/pause", adminToken, `{"reason":"`+strings.Repeat("x", 501)+`"}`).ExpectProblem(422, "invalid_field", "reason", "500")
		b.Call("POST", "/v1/batches/1/pause", adminToken, `{"because":"x"}`).ExpectProblem(400, "unknown_field", "because")
	})
}

func TestBatchThatFailsPausesItself(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		id := b.CreateBatch(`{"pool":"p","max_attempts":1,"abort":{"failure":0.5,"min":2},"devices":["d-1","d-2","d-3","d-4"]}`)
		fold := func() (aborted []int64) {
			b.Helper()
			aborted, err := b.Dispatcher.Upkeep.FoldCounts(b.Context())
			b.Must(err)
			return aborted
		}
		b.SendReport("d-1", b.ReportUntilGranted("d-1").Result("succeeded", "")).Expect(200)
		if aborted := fold(); aborted != nil {
			b.Errorf("paused %v after a success", aborted)
		}
		b.SendReport("d-2", b.ReportUntilGranted("d-2").Result("failed", "")).Expect(200)
		if aborted := fold(); len(aborted) != 1 || aborted[0] != id {
			b.Errorf("paused %v, want %d", aborted, id)
		}
		shown := b.Get(fmt.Sprintf("/v1/batches/%d", id)).Expect(200).Object()
		if shown["state"] != "paused" || shown["paused_by"] != "abort rule" || shown["pause_reason"] != "1 of 2 failed" || asNumber(shown["rate_per_minute"]) <= 0 || shown["eta"] != nil {
			b.Errorf("%v", shown)
		}
		if rule := asObject(shown["abort"]); rule["failure"] != 0.5 || rule["min"] != 2.0 {
			b.Errorf("the rule is shown as %v", rule)
		}
		if resumed := b.callBatchOperation(id, "resume", ""); resumed["eta"] == nil {
			b.Errorf("running, and nothing said of its end: %v", resumed)
		}
		b.ReportUntilGranted("d-3")
	})
}
