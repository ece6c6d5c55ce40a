package api_test

import (
	"fmt"
	"strings"
	"testing"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
)

func TestPoolIsPatchedPausedAndResumed(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":7,"lease_ms":5000}`)
		b.CreateBatch(`{"pool":"p","devices":["d-1"]}`)
		for _, step := range []struct{ method, path, body, want string }{
			{"PATCH", "", `{}`, "7 5000 false [] []"},
			{"PATCH", "", `{"capacity":2}`, "2 5000 false [] []"},
			{"PATCH", "", `{"lease_ms":9000}`, "2 9000 false [] []"},
			{"PATCH", "", `{"paused":true}`, "2 9000 true [] []"},
			{"PATCH", "", `{"lease_ms":null,"paused":null}`, "2 300000 false [] []"},
			{"POST", "/pause", `{"reason":"slow"}`, "2 300000 true [] []"},
			{"POST", "/pause", ``, "2 300000 true [] []"},
			{"POST", "/resume", ``, "2 300000 false [] []"},
			{"POST", "/pause", ``, "2 300000 true [] []"},
		} {
			var body any
			if step.body != "" {
				body = step.body
			}
			got := b.Call(step.method, "/v1/pools/p"+step.path, adminToken, body).Expect(200).Object()
			if poolSettingsText(got) != step.want {
				b.Errorf("%s%s %s: %s, want %s", step.method, step.path, step.body, poolSettingsText(got), step.want)
			}
			snapshot, err := b.Semaphore.Snapshot(b.Context(), "p")
			if err != nil || float64(snapshot.Capacity) != got["capacity"] {
				b.Errorf("%s: Redis knows %+v (%v)", step.body, snapshot, err)
			}
		}
		var reply deviceReply
		if b.SendReport("d-1", `{"id":"x"}`).Expect(200).Decode(&reply); reply.Reason != "paused" {
			b.Errorf("reason %s in a paused pool", reply.Reason)
		}
		b.Call("POST", "/v1/pools/p/resume", adminToken, nil).Expect(200)
		b.Call("POST", "/v1/pools/p/pause", adminToken, `{"reason":"slow"}`).Expect(200)
		shown := b.Get("/v1/pools/p").Expect(200)
		if f := shown.Object(); f["paused_by"] != "bootstrap" || f["pause_reason"] != "slow" || f["paused_at"] == nil {
			b.Errorf("paused: %v", f)
		}
		b.Call("PUT", "/v1/pools/p", adminToken, string(shown.Body)).Expect(200) // the body that a GET returned
		b.expectRefused("PATCH", "/v1/pools/p", []badBody{
			{`{"capacity":-1}`, 422, "invalid_field", nil},
			{`{"capacity":10001}`, 422, "invalid_field", nil},
			{`{"capacity":null}`, 422, "invalid_field", []string{"capacity", "default"}},
			{`{"capacity":""}`, 422, "invalid_field", []string{"capacity"}},
			{`{"lease_ms":1000}`, 422, "invalid_field", nil},
			{`{"paused":"no"}`, 422, "invalid_field", nil},
			{`{"name":"q"}`, 400, "unknown_field", nil},
		})
		b.Call("PATCH", "/v1/pools/q", adminToken, `{}`).ExpectProblem(404, "not_found")
		b.Call("POST", "/v1/pools/q/pause", adminToken, nil).ExpectProblem(404, "not_found")
		b.Call("POST", "/v1/pools/-/resume", adminToken, nil).ExpectProblem(400, "invalid_pool")
	})
}

func TestPoolIsDeleted(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":1}`)
		id := b.CreateBatch(`{"pool":"p","devices":["d-1"]}`)
		b.Call("DELETE", "/v1/pools/p", adminToken, nil).ExpectProblem(409, "open_tasks", "cancel")
		g := b.ReportUntilGranted("d-1")
		b.Call("DELETE", "/v1/pools/p", adminToken, nil).ExpectProblem(409, "open_tasks")
		b.SendReport("d-1", g.Result("succeeded", "")).Expect(200)
		if a := b.Call("DELETE", "/v1/pools/p", adminToken, nil).Expect(204); len(a.Body) != 0 {
			b.Errorf("answered %s", a.Body)
		}
		b.Get("/v1/pools/p").ExpectProblem(404, "not_found")
		b.Get("/v1/pools/p/slots").ExpectProblem(404, "not_found")
		b.Call("DELETE", "/v1/pools/p", adminToken, nil).ExpectProblem(404, "not_found")
		b.Call("POST", "/v1/batches", adminToken, `{"pool":"p","devices":["d-1"]}`).ExpectProblem(422, "unknown_pool")
		if state, _ := b.batchCounts(id); state != "finished" {
			b.Errorf("its batch is %s", state)
		}
		if snapshot, err := b.Semaphore.Snapshot(b.Context(), "p"); err != nil || snapshot.PoolKnown {
			b.Errorf("Redis still knows %+v (%v)", snapshot, err)
		}
		b.Call("PUT", "/v1/pools/p", adminToken, `{"capacity":2}`).Expect(201)
		b.CreateBatch(`{"pool":"p","devices":["d-1"]}`)
		b.ReportUntilGranted("d-1")
	})
}

// createHeldSlot creates pool p with one slot, which device d-1 holds. Device d-2 has a task in the pool, too.
func (b *testAPI) createHeldSlot() rig.Grant {
	b.Helper()
	b.PutPool("p", `{"capacity":1}`)
	b.CreateBatch(`{"pool":"p","devices":["d-1","d-2"]}`)
	return b.ReportUntilGranted("d-1")
}

func (b *testAPI) releaseSlot(body string) rig.Response {
	b.Helper()
	return b.Call("POST", "/v1/pools/p/slots/0/release", adminToken, body)
}

func TestForceThatNamesNoGrantIsRefused(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createHeldSlot()
	for _, body := range []string{`{}`, `{"reason":" "}`, `{"reason":"x","now":1}`, `{"reason":"x","token":0}`} {
		b.releaseSlot(body).ExpectProblem(422, "invalid_field")
	}
	b.releaseSlot(`{"reason":"x","token":999}`).ExpectProblem(404, "not_found", "slot 0 of pool p", "token 999")
	for path, names := range map[string]string{
		"p/slots/0": "slot 0 of pool p is free", "p/slots/1": "pool p has no slot 1: its capacity is 1", "q/slots/0": "no such pool: q",
	} {
		if path == "p/slots/0" {
			b.releaseSlot(`{"reason":"x","now":true}`).Expect(200)
		}
		b.Call("POST", "/v1/pools/"+path+"/release", adminToken, `{"reason":"x"}`).ExpectProblem(404, "not_found", names)
	}
}

// checkGrant asks the API about a grant, as a verifier of fencing tokens does. It returns as text whether the grant
// is alive, its device, its slot, and whether lease time is left.
func (b *testAPI) checkGrant(g rig.Grant) (answer string) {
	b.Helper()
	answered := b.Call("GET", fmt.Sprintf("/v1/pools/p/grants/%d", g.Token), b.createToken("verifier"), nil).Expect(200).Object()
	left := asNumber(answered["lease_ms"])
	return fmt.Sprintf("%v %v %v %t", answered["alive"], answered["device"], answered["slot"], left > 0 && left <= 300_000)
}

// An operator releases a slot without the option "now". The holder is only asked to stop. It keeps the slot until it
// has stopped.
func TestHolderIsAskedToStop(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		first := b.createHeldSlot()
		asked := b.releaseSlot(releaseSlotBody).Expect(200).Object()
		shown := asObject(listField(b.Get("/v1/pools/p/slots").Expect(200).Object(), "slots")[0])
		if asked["cancel"] != "cancelled" || shown["cancel"] != "cancelled" {
			b.Errorf("the pending stop is not shown: %v, %v", asked, shown)
		}
		if asked["state"] != "held" || asked["device"] != "d-1" || asked["token"] != float64(first.Token) {
			b.Errorf("asked: %v", asked)
		}
		var told struct {
			Reason string
			Cancel []struct{ Why string }
		}
		b.SendReport("d-1", fmt.Sprintf(`{"id":"x","running":[{"task":%d,"token":%d}]}`, first.ID, first.Token)).Expect(200).Decode(&told)
		if len(told.Cancel) != 1 || told.Cancel[0].Why != "cancelled" {
			b.Errorf("the holder is told %+v", told)
		}
		if b.SendReport("d-2", `{"id":"x"}`).Expect(200).Decode(&told); told.Reason != "full" {
			b.Errorf("reason %s while the holder may be inside", told.Reason)
		}
		if got := b.checkGrant(first); got != "true d-1 0 true" {
			b.Errorf("the grant is %s", got)
		}
	})
}

func TestSlotIsTakenBackByForce(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		first := b.createHeldSlot()
		if freed := b.releaseSlot(`{"reason":"it hangs","now":true}`).Expect(200).Object(); freed["state"] != "free" {
			b.Errorf("freed: %v", freed)
		}
		second := b.ReportUntilGranted("d-2")
		if second.Slot != 0 || second.Token <= first.Token {
			b.Errorf("the next grant: %+v after %+v", second, first)
		}
		var reply deviceReply
		if b.SendReport("d-1", first.Result("succeeded", "")).Expect(200).Decode(&reply); reply.sortedOutcomes() != "late" {
			b.Errorf("the fenced holder's result is %s", reply.sortedOutcomes())
		}
		if got := b.checkGrant(first); got != "false <nil> <nil> false" {
			b.Errorf("the fenced grant is %s", got)
		}
		if held := b.Get("/v1/pools/p/slots").Object()["held"]; held != 1.0 {
			b.Errorf("%v held", held)
		}
		metrics := string(b.Call("GET", "/metrics", "", nil).Body)
		if want := `dispatcher_slots_forced_total{pool="p"} 1`; !strings.Contains(metrics, want) {
			b.Errorf("no %s", want)
		}
	})
}

// A dry run of a change of a pool's settings gets the same response or refusal as the real request, and changes
// nothing.
func TestDryRunsOfPoolsChangeNothing(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		before := string(b.Get("/v1/pools").Expect(200).Body)
		for _, test := range []struct {
			method, path, body string
			capacity, version  float64
		}{
			{"PUT", "/v1/pools/new", `{"capacity":7}`, 7, 1},
			{"PUT", "/v1/pools/p", `{"capacity":7,"paused":true}`, 7, 2},
			{"PATCH", "/v1/pools/p", `{"capacity":8}`, 8, 2},
			{"PATCH", "/v1/pools/p", `{"capacity":60}`, 60, 1},
		} {
			got := b.Call(test.method, test.path+"?dry_run=true", adminToken, test.body).Expect(200).Object()
			if got["capacity"] != test.capacity || got["version"] != test.version {
				b.Errorf("%s %s: %v", test.method, test.path, got)
			}
		}
		b.Call("PATCH", "/v1/pools/new?dry_run=true", adminToken, `{"capacity":7}`).ExpectProblem(404, "not_found")
		b.Call("PUT", "/v1/pools/new?dry_run=true", adminToken, `{"capacity":10001}`).ExpectProblem(422, "invalid_field")
		b.Call("PATCH", "/v1/pools/p?dry_run=true", adminToken, `{"lease_ms":1}`).ExpectProblem(422, "invalid_field")
		if after := string(b.Get("/v1/pools").Expect(200).Body); after != before {
			b.Errorf("before %s, after %s", before, after)
		}
		if events := listField(b.Get("/v1/events").Expect(200).Object(), "events"); len(events) != 1 {
			b.Errorf("events %v, want the creation alone", events)
		}
	})
}
