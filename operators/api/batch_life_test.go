package api_test

import (
	"fmt"
	"strings"
	"testing"
)

// life calls an operation of a batch and returns the batch.
func (b *bench) life(id int64, what, body string) map[string]any {
	b.Helper()
	var with any
	if body != "" {
		with = body
	}
	return b.call("POST", fmt.Sprintf("/v1/batches/%d/%s", id, what), adminToken, with).must(200).fields()
}

func TestBatchIsPausedResumedAndCancelled(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.pool("p", `{"capacity":3}`)
		id := b.batch(`{"pool":"p","devices":["d-1","d-2","d-3"]}`)
		first := b.granted("d-1")
		paused := b.life(id, "pause", `{"reason":"too slow"}`)
		if paused["state"] != "paused" || paused["paused_by"] != "bootstrap" || paused["pause_reason"] != "too slow" || paused["paused_at"] == nil {
			b.Errorf("paused: %v", paused)
		}
		var reply reply
		b.report("d-2", `{"id":"x"}`).must(200).into(&reply)
		if reply.Reason != "paused" {
			b.Errorf("reason %s while paused", reply.Reason)
		}
		resumed := b.life(id, "resume", "")
		if resumed["state"] != "running" || resumed["paused_by"] != "" || resumed["pause_reason"] != "" || resumed["paused_at"] != nil {
			b.Errorf("resumed: %v", resumed)
		}
		b.granted("d-2")
		if again := b.life(id, "pause", ""); again["state"] != "paused" || again["pause_reason"] != "" { // without a body there is no reason
			b.Errorf("paused: %v", again)
		}
		if cancelled := b.life(id, "cancel", ""); cancelled["state"] != "cancelling" {
			b.Errorf("cancelled: %v", cancelled)
		}
		if n, err := b.dispatcher.Upkeep.EndCancelled(b.Context()); n != 1 || err != nil {
			b.Errorf("ended %d (%v), want the one that waits", n, err)
		}
		var told struct {
			Reason string
			Cancel []struct {
				Task int64
				Why  string
			}
		}
		b.report("d-1", fmt.Sprintf(`{"id":"x","running":[{"task":%d,"token":%d}]}`, first.ID, first.Token)).must(200).into(&told)
		if len(told.Cancel) != 1 || told.Cancel[0].Task != first.ID || told.Cancel[0].Why != "cancelled" {
			b.Errorf("the device that runs is told %+v", told)
		}
		b.report("d-1", first.result("failed", "")).must(200)
		if state, counts := b.counts(id); state != "cancelling" || counts["cancelled"] != 2.0 || counts["dispatched"] != 1.0 {
			b.Errorf("%s %v while one runs", state, counts)
		}
		b.report("d-2", `{"id":"x"}`).must(200).into(&told)
		if len(told.Cancel) != 1 || told.Reason != "busy" {
			b.Errorf("the device that lost its reply is told %+v", told)
		}
		second := told.Cancel[0].Task
		token := b.get(fmt.Sprintf("/v1/tasks/%d", second)).must(200).fields()
		g := grant{ID: second, Token: int64(number(object(token["grant"])["token"]))}
		b.report("d-2", g.result("succeeded", "")).must(200)
		if state, counts := b.counts(id); state != "cancelled" || counts["succeeded"] != 1.0 {
			b.Errorf("%s %v in the end", state, counts)
		}
	})
}

func number(value any) float64 {
	n, _ := value.(float64)
	return n
}

func TestBatchIsPatched(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.pool("p", `{"capacity":60}`)
		id := b.batch(`{"pool":"p","devices":["d-1"],"priority":4,"weight":5,"max_attempts":6,"not_before":"2097-01-01T00:00:00Z","not_after":"2098-01-01T00:00:00Z"}`)
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
			if got := shown(b.call("PATCH", path, adminToken, test.body).must(200).fields()); got != test.want {
				b.Errorf("%s: %s, want %s", test.body, got, test.want)
			}
		}
		b.refuses("PATCH", path, []badBody{
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
		b.call("PATCH", "/v1/batches/99", adminToken, `{}`).problem(404, "not_found")
		for _, what := range []string{"pause", "resume", "cancel"} {
			b.call("POST", "/v1/batches/99/"+what, adminToken, nil).problem(404, "not_found")
		}
		b.call("POST", "/v1/batches/1/pause", adminToken, `{"reason":"`+strings.Repeat("x", 501)+`"}`).problem(422, "invalid_field").names(b.T, "reason", "500")
		b.call("POST", "/v1/batches/1/pause", adminToken, `{"because":"x"}`).problem(400, "unknown_field").names(b.T, "because")
	})
}

func TestBatchThatFailsPausesItself(t *testing.T) {
	t.Parallel()
	forServers(t, func(b *bench) {
		b.pool("p", `{"capacity":60}`)
		id := b.batch(`{"pool":"p","max_attempts":1,"abort":{"failure":0.5,"min":2},"devices":["d-1","d-2","d-3","d-4"]}`)
		fold := func() (aborted []int64) {
			b.Helper()
			aborted, err := b.dispatcher.Upkeep.Fold(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			return aborted
		}
		b.report("d-1", b.granted("d-1").result("succeeded", "")).must(200)
		if aborted := fold(); aborted != nil {
			b.Errorf("paused %v after a success", aborted)
		}
		b.report("d-2", b.granted("d-2").result("failed", "")).must(200)
		if aborted := fold(); len(aborted) != 1 || aborted[0] != id {
			b.Errorf("paused %v, want %d", aborted, id)
		}
		shown := b.get(fmt.Sprintf("/v1/batches/%d", id)).must(200).fields()
		if shown["state"] != "paused" || shown["paused_by"] != "abort rule" || shown["pause_reason"] != "1 of 2 failed" || number(shown["rate_per_minute"]) <= 0 || shown["eta"] != nil {
			b.Errorf("%v", shown)
		}
		if rule := object(shown["abort"]); rule["failure"] != 0.5 || rule["min"] != 2.0 {
			b.Errorf("the rule is shown as %v", rule)
		}
		if resumed := b.life(id, "resume", ""); resumed["eta"] == nil {
			b.Errorf("running, and nothing said of its end: %v", resumed)
		}
		b.granted("d-3")
	})
}
