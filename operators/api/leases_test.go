package api_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
)

// requestLease requests a lease in the pool. If waitSeconds is not 0, the request waits at most waitSeconds seconds for
// a slot.
func (b *testAPI) requestLease(token, pool, body string, waitSeconds int) rig.Response {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), http.MethodPost, b.URL+"/v1/pools/"+pool+"/leases", strings.NewReader(body))
	b.Must(err)
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	if waitSeconds > 0 {
		request.Header.Set("Prefer", "wait="+strconv.Itoa(waitSeconds))
	}
	return b.DoRequest(request)
}

// numberText converts a number of a JSON response to text, so that it can be put into a path.
func numberText(value any) string {
	n, _ := value.(float64)
	return strconv.FormatFloat(n, 'f', -1, 64)
}

func TestCallersLeaseSlots(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("ci-1", `{"capacity":1,"lease_ms":60000}`)
		token := b.createCallerToken(`"pools":["ci-*"]`)
		got := b.requestLease(token, "ci-1", `{"holder":"job-17","lease_ms":30000,"metadata":{"branch":"main"}}`, 0).Expect(201).Object()
		if got["state"] != "held" || got["holder"] != "job-17" || got["slot"] != 0.0 || got["pool"] != "ci-1" || asObject(got["metadata"])["branch"] != "main" {
			b.Fatalf("%v", got)
		}
		if ms, _ := got["lease_ms"].(float64); ms > 24_000 || ms < 20_000 {
			b.Errorf("lease_ms %v, want 30 s less a fifth", ms)
		}
		again := b.requestLease(token, "ci-1", `{"holder":"job-17"}`, 5).Expect(201).Object()
		if again["token"] != got["token"] || again["lease"] != got["lease"] {
			b.Errorf("asked again: %v", again)
		}

		refused := b.requestLease(token, "ci-1", `{}`, 0)
		refused.ExpectProblem(409, "no_slot")
		if f := refused.Object(); f["reason"] != "pool_full" || f["position"] != 1.0 || f["retry_after_ms"] == nil || refused.Header.Get("Retry-After") == "" {
			b.Errorf("refused: %v, Retry-After %q", f, refused.Header.Get("Retry-After"))
		}
		waits := b.requestLease(token, "ci-1", `{"holder":"next"}`, 1).Expect(202)
		if f := waits.Object(); f["state"] != "waiting" || f["reason"] != "pool_full" || f["position"] != 1.0 || waits.Header.Get("Preference-Applied") != "wait=1" {
			b.Errorf("waits: %v", f)
		}

		all := listField(b.Call("GET", "/v1/pools/ci-1/leases", token, nil).Expect(200).Object(), "leases")
		if len(all) != 2 || asObject(all[0])["holder"] != "job-17" || asObject(all[1])["state"] != "waiting" {
			b.Errorf("leases %v", all)
		}
		path := "/v1/pools/ci-1/leases/" + numberText(got["lease"])
		if one := b.Call("GET", path, token, nil).Expect(200).Object(); one["token"] != got["token"] {
			b.Errorf("lease %v", one)
		}
		slot := asObject(listField(b.Get("/v1/pools/ci-1/slots").Expect(200).Object(), "slots")[0])
		if caller, _ := slot["caller"].(string); !strings.HasSuffix(caller, "/job-17") || slot["device"] != "@"+caller {
			b.Errorf("slot %v", slot)
		}

		renewed := b.Call("POST", path+"/renew", token, `{"token":`+numberText(got["token"])+`,"lease_ms":120000}`).Expect(200).Object()
		if ms, _ := renewed["lease_ms"].(float64); ms < 100_000 {
			b.Errorf("renewed: %v", renewed)
		}
		another := numberText(got["token"]) + "0"
		lost := b.Call("POST", path+"/renew", token, `{"token":`+another+`}`)
		lost.ExpectProblem(409, "lease_lost")
		b.Call("DELETE", path+"?token="+another, token, nil).ExpectProblem(409, "lease_lost")
		b.Call("DELETE", path, token, nil).ExpectProblem(422, "invalid_field")
		for range 2 {
			b.Call("DELETE", path+"?token="+numberText(got["token"]), token, nil).Expect(204)
		}
		b.Call("GET", path, token, nil).ExpectProblem(404, "not_found")
		b.requestLease(token, "ci-1", `{"holder":"next"}`, 5).Expect(201)
	})
}

// The ids of callers cannot be used by devices. No transport accepts such a device id, so no device can act as a
// caller.
func TestNoDeviceIsACaller(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":2}`)
	held := b.requestLease(adminToken, "p", `{"holder":"job"}`, 0).Expect(201).Object()
	result := `{"id":"r","results":[{"task":` + numberText(held["lease"]) + `,"token":` + numberText(held["token"]) + `,"status":"succeeded"}]}`
	for _, name := range []string{"@bootstrap%2Fjob", "%40bootstrap%2fjob"} {
		b.SendReport(name, result).ExpectProblem(400, "invalid_device_id")
	}
	b.Call("POST", "/v1/devices", adminToken, `{"id":"@bootstrap/job"}`).ExpectProblem(400, "invalid_device_id")
	b.Call("POST", "/v1/batches", adminToken, `{"pool":"p","devices":["@bootstrap/job"]}`).ExpectProblem(422, "invalid_field", "invalid_device_id")
	b.sendWithType("POST", "/v1/devices", "text/csv", "id\n@bootstrap/job\n").ExpectProblem(422, "invalid_line")
	b.SendReport("another", result).Expect(200)
	if one := b.Get("/v1/pools/p/leases/" + numberText(held["lease"])).Expect(200).Object(); one["state"] != "held" {
		t.Errorf("%v", one)
	}
	b.Get("/v1/devices/@bootstrap%2Fjob").ExpectProblem(400, "invalid_device_id")
	if all := listField(b.Get("/v1/devices").Object(), "devices"); len(all) != 1 { // the device that reported
		t.Errorf("devices %v", all)
	}
	if of := listField(b.Get("/v1/tasks?device=@bootstrap/job").Expect(200).Object(), "tasks"); len(of) != 1 {
		t.Errorf("tasks of the holder: %v", of)
	}
}

func TestLeasesThatDoNotFitAreRefused(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":2}`)
	b.PutPool("q", `{"capacity":2}`)
	for body, part := range map[string]string{
		`{"holder":"a/b"}`:      "holder",
		`{"holder":"@a"}`:       "holder",
		`{"lease_ms":1000}`:     "lease_ms: at least 2000",
		`{"lease_ms":86400001}`: "lease_ms",
		`{"metadata":[1]}`:      "metadata: must be a JSON object",
		`{"metadata":{"a":"` + strings.Repeat("x", 4096) + `"}}`: "metadata: at most 4096 bytes",
	} {
		b.requestLease(adminToken, "p", body, 0).ExpectProblem(422, "invalid_field", part)
	}
	b.requestLease(adminToken, "nowhere", `{}`, 0).ExpectProblem(404, "not_found")
	b.requestLease(adminToken, "p", `{"holder":"one"}`, 0).Expect(201)
	b.requestLease(adminToken, "q", `{"holder":"one"}`, 0).ExpectProblem(409, "already_exists", "another pool")
	b.Call("PATCH", "/v1/pools/p", adminToken, `{"callers":1}`).Expect(200)
	if p := b.Call("PATCH", "/v1/pools/p", adminToken, `{"capacity":3}`).Expect(200).Object(); p["callers"] != 1.0 {
		t.Errorf("callers %v", p["callers"])
	}
	refused := b.requestLease(adminToken, "p", `{"holder":"two"}`, 0)
	refused.ExpectProblem(409, "no_slot")
	if refused.Object()["reason"] != "callers_full" {
		t.Errorf("%s", refused.Body)
	}
	if p := b.Call("PATCH", "/v1/pools/p", adminToken, `{"callers":null}`).Expect(200).Object(); p["callers"] != nil {
		t.Errorf("callers %v", p["callers"])
	}
	b.requestLease(adminToken, "p", `{"holder":"two"}`, 0).Expect(201)
}

// The batch that contains the leases of callers is marked as a system batch. If it is cancelled, its leases end
// like tasks and none is retried. The next lease gets a new batch.
func TestTheBatchOfLeasesIsTheSystems(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":2}`)
	held := b.requestLease(adminToken, "p", `{"holder":"job"}`, 0).Expect(201).Object()
	path := "/v1/pools/p/leases/" + numberText(held["lease"])
	batch := asObject(listField(b.Get("/v1/batches?pool=p").Expect(200).Object(), "batches")[0])
	if batch["name"] != "callers" || batch["kind"] != "lease" || batch["system"] != true || batch["total"] != 1.0 {
		t.Errorf("%v", batch)
	}
	of := "/v1/batches/" + numberText(batch["id"])
	b.Call("PATCH", of, adminToken, `{"weight":5}`).Expect(200)
	b.Call("POST", of+"/cancel", adminToken, nil).Expect(200)
	renew := `{"token":` + numberText(held["token"]) + `}`
	lost := b.Call("POST", path+"/renew", adminToken, renew)
	lost.ExpectProblem(409, "lease_lost")
	if lost.Object()["cancel"] != "cancelled" {
		t.Errorf("%s", lost.Body)
	}
	b.Call("DELETE", path+"?token="+numberText(held["token"]), adminToken, nil).Expect(204)
	if next := b.requestLease(adminToken, "p", `{"holder":"job"}`, 0).Expect(201).Object(); next["lease"] == held["lease"] {
		t.Errorf("%v", next)
	}
	second := b.requestLease(adminToken, "p", `{"holder":"two"}`, 0).Expect(201).Object()
	b.Call("POST", "/v1/pools/p/slots/"+numberText(second["slot"])+"/release", adminToken, `{"reason":"a test","now":true}`).Expect(200)
	gone := b.Call("POST", "/v1/pools/p/leases/"+numberText(second["lease"])+"/renew", adminToken, `{"token":`+numberText(second["token"])+`}`)
	gone.ExpectProblem(409, "lease_lost")
	if f := gone.Object(); f["reason"] != "released" || f["cancel"] != nil {
		t.Errorf("%v", f)
	}
	b.Call("POST", "/v1/tasks/"+numberText(second["lease"])+"/retry", adminToken, nil).ExpectProblem(409, "not_retriable")
	if n := b.Call("POST", "/v1/tasks/retry?pool=p", adminToken, nil).Expect(200).Object()["tasks"]; n != 0.0 {
		t.Errorf("%v leases were retried", n)
	}
}

// A caller can end its own leases. It can neither read nor change the leases of another caller.
func TestCallersHaveTheirOwnLeases(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":5}`)
	one, other := b.createCallerToken(`"pools":["*"]`), b.createCallerToken(`"pools":["p"]`)
	held := b.requestLease(one, "p", `{"holder":"job"}`, 0).Expect(201).Object()
	path := "/v1/pools/p/leases/" + numberText(held["lease"])
	b.Call("GET", path, other, nil).ExpectProblem(404, "not_found")
	b.Call("POST", path+"/renew", other, `{"token":`+numberText(held["token"])+`}`).ExpectProblem(404, "not_found")
	b.Call("DELETE", path+"?token="+numberText(held["token"]), other, nil).ExpectProblem(404, "not_found")
	if all := listField(b.Call("GET", "/v1/pools/p/leases", other, nil).Expect(200).Object(), "leases"); len(all) != 0 {
		t.Errorf("%v", all)
	}
	if mine := b.requestLease(other, "p", `{"holder":"job"}`, 0).Expect(201).Object(); mine["lease"] == held["lease"] {
		t.Errorf("two callers have one lease: %v", mine)
	}
	b.Call("DELETE", path+"?token="+numberText(held["token"]), one, nil).Expect(204)
}

// A pool limits the length of leases, both when a caller acquires one and when it renews one.
func TestTheLongestLeaseOfAPool(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	p := b.Call("PUT", "/v1/pools/p", adminToken, `{"capacity":3,"lease_ms":60000}`).Expect(201).Object()
	if p["longest_lease_ms"] != 86400000.0 || p["stands_until"] != nil {
		t.Errorf("longest lease %v, stands until %v", p["longest_lease_ms"], p["stands_until"])
	}
	held := b.requestLease(adminToken, "p", `{"holder":"long","lease_ms":86400000}`, 0).Expect(201).Object()
	for body, part := range map[string]string{`{"longest_lease_ms":0}`: "longest_lease_ms", `{"longest_lease_ms":86400001}`: "longest_lease_ms", `{"longest_lease_ms":1}`: "longest_lease_ms"} {
		b.Call("PATCH", "/v1/pools/p", adminToken, body).ExpectProblem(422, "invalid_field", part)
	}
	b.Call("PATCH", "/v1/pools/p", adminToken, `{"longest_lease_ms":120000}`).Expect(200)
	b.requestLease(adminToken, "p", `{"holder":"other","lease_ms":120001}`, 0).ExpectProblem(422, "invalid_field", "at most 120000")
	b.requestLease(adminToken, "p", `{"holder":"other","lease_ms":120000}`, 0).Expect(201)
	renew, token := "/v1/pools/p/leases/"+numberText(held["lease"])+"/renew", numberText(held["token"])
	b.Call("POST", renew, adminToken, `{"token":`+token+`,"lease_ms":120001}`).ExpectProblem(422, "invalid_field", "at most 120000")
	b.Call("POST", renew, adminToken, `{"token":`+token+`}`).Expect(200)
	if p := b.Call("PATCH", "/v1/pools/p", adminToken, `{"longest_lease_ms":null}`).Expect(200).Object(); p["longest_lease_ms"] != 86400000.0 {
		t.Errorf("longest lease %v", p["longest_lease_ms"])
	}
}

// The setting longest_sleep_ms of a pool has a default, can be changed and reset, and its limits are checked.
func TestTheLongestSleepOfAPool(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	expect := func(method, body string, want float64) {
		t.Helper()
		status := map[string]int{"PUT": 201, "PATCH": 200}[method]
		if p := b.Call(method, "/v1/pools/p", adminToken, body).Expect(status).Object(); p["longest_sleep_ms"] != want {
			t.Errorf("%s %s: longest sleep %v, want %v", method, body, p["longest_sleep_ms"], want)
		}
	}
	expect("PUT", `{"capacity":3}`, 600000)
	expect("PATCH", `{"longest_sleep_ms":3600000}`, 3600000)
	expect("PATCH", `{"capacity":4}`, 3600000)
	for _, body := range []string{`{"longest_sleep_ms":0}`, `{"longest_sleep_ms":86400001}`} {
		b.Call("PATCH", "/v1/pools/p", adminToken, body).ExpectProblem(422, "invalid_field", "longest_sleep_ms")
	}
	expect("PATCH", `{"longest_sleep_ms":null}`, 600000)
	if text := string(b.Call("GET", "/v1/events?kind=pool.changed", adminToken, nil).Expect(200).Body); !strings.Contains(text, "longest_sleep=1h0m0s") {
		t.Errorf("the log does not name the change: %s", text)
	}
}
