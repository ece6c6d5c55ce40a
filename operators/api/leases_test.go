package api_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// requestLease requests a lease in the pool. If waitSeconds is not 0, the request waits at most waitSeconds seconds for
// a slot.
func (b *testAPI) requestLease(token, pool, body string, waitSeconds int) apiResponse {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), http.MethodPost, b.url+"/v1/pools/"+pool+"/leases", strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	if waitSeconds > 0 {
		request.Header.Set("Prefer", "wait="+strconv.Itoa(waitSeconds))
	}
	return b.doRequest(request)
}

// numberText converts a number of a JSON response to text, so that it can be put into a path.
func numberText(value any) string {
	n, _ := value.(float64)
	return strconv.FormatFloat(n, 'f', -1, 64)
}

func TestCallersLeaseSlots(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.putPool("ci-1", `{"capacity":1,"lease_ms":60000}`)
		token := b.createCallerToken(`"pools":["ci-*"]`)
		got := b.requestLease(token, "ci-1", `{"holder":"job-17","lease_ms":30000,"metadata":{"branch":"main"}}`, 0).expectStatus(201).decodeObject()
		if got["state"] != "held" || got["holder"] != "job-17" || got["slot"] != 0.0 || got["pool"] != "ci-1" || asObject(got["metadata"])["branch"] != "main" {
			b.Fatalf("%v", got)
		}
		if ms, _ := got["lease_ms"].(float64); ms > 24_000 || ms < 20_000 {
			b.Errorf("lease_ms %v, want 30 s less a fifth", ms)
		}
		again := b.requestLease(token, "ci-1", `{"holder":"job-17"}`, 5).expectStatus(201).decodeObject()
		if again["token"] != got["token"] || again["lease"] != got["lease"] {
			b.Errorf("asked again: %v", again)
		}

		refused := b.requestLease(token, "ci-1", `{}`, 0)
		refused.expectProblem(409, "no_slot")
		if f := refused.decodeObject(); f["reason"] != "pool_full" || f["position"] != 1.0 || f["retry_after_ms"] == nil || refused.header.Get("Retry-After") == "" {
			b.Errorf("refused: %v, Retry-After %q", f, refused.header.Get("Retry-After"))
		}
		waits := b.requestLease(token, "ci-1", `{"holder":"next"}`, 1).expectStatus(202)
		if f := waits.decodeObject(); f["state"] != "waiting" || f["reason"] != "pool_full" || f["position"] != 1.0 || waits.header.Get("Preference-Applied") != "wait=1" {
			b.Errorf("waits: %v", f)
		}

		all := listField(b.call("GET", "/v1/pools/ci-1/leases", token, nil).expectStatus(200).decodeObject(), "leases")
		if len(all) != 2 || asObject(all[0])["holder"] != "job-17" || asObject(all[1])["state"] != "waiting" {
			b.Errorf("leases %v", all)
		}
		path := "/v1/pools/ci-1/leases/" + numberText(got["lease"])
		if one := b.call("GET", path, token, nil).expectStatus(200).decodeObject(); one["token"] != got["token"] {
			b.Errorf("lease %v", one)
		}
		slot := asObject(listField(b.get("/v1/pools/ci-1/slots").expectStatus(200).decodeObject(), "slots")[0])
		if caller, _ := slot["caller"].(string); !strings.HasSuffix(caller, "/job-17") || slot["device"] != "@"+caller {
			b.Errorf("slot %v", slot)
		}

		renewed := b.call("POST", path+"/renew", token, `{"token":`+numberText(got["token"])+`,"lease_ms":120000}`).expectStatus(200).decodeObject()
		if ms, _ := renewed["lease_ms"].(float64); ms < 100_000 {
			b.Errorf("renewed: %v", renewed)
		}
		another := numberText(got["token"]) + "0"
		lost := b.call("POST", path+"/renew", token, `{"token":`+another+`}`)
		lost.expectProblem(409, "lease_lost")
		b.call("DELETE", path+"?token="+another, token, nil).expectProblem(409, "lease_lost")
		b.call("DELETE", path, token, nil).expectProblem(422, "invalid_field")
		for range 2 {
			b.call("DELETE", path+"?token="+numberText(got["token"]), token, nil).expectStatus(204)
		}
		b.call("GET", path, token, nil).expectProblem(404, "not_found")
		b.requestLease(token, "ci-1", `{"holder":"next"}`, 5).expectStatus(201)
	})
}

// The ids of callers cannot be used by devices. No transport accepts such a device id, so no device can act as a
// caller.
func TestNoDeviceIsACaller(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.putPool("p", `{"capacity":2}`)
	held := b.requestLease(adminToken, "p", `{"holder":"job"}`, 0).expectStatus(201).decodeObject()
	result := `{"id":"r","results":[{"task":` + numberText(held["lease"]) + `,"token":` + numberText(held["token"]) + `,"status":"succeeded"}]}`
	for _, name := range []string{"@bootstrap%2Fjob", "%40bootstrap%2fjob"} {
		b.sendReport(name, result).expectProblem(400, "invalid_device_id")
	}
	b.call("POST", "/v1/devices", adminToken, `{"id":"@bootstrap/job"}`).expectProblem(400, "invalid_device_id")
	b.call("POST", "/v1/batches", adminToken, `{"pool":"p","devices":["@bootstrap/job"]}`).expectProblem(422, "invalid_field").expectMentions(t, "invalid_device_id")
	b.sendWithType("POST", "/v1/devices", "text/csv", "id\n@bootstrap/job\n").expectProblem(422, "invalid_line")
	b.sendReport("another", result).expectStatus(200)
	if one := b.get("/v1/pools/p/leases/" + numberText(held["lease"])).expectStatus(200).decodeObject(); one["state"] != "held" {
		t.Errorf("%v", one)
	}
	b.get("/v1/devices/@bootstrap%2Fjob").expectProblem(400, "invalid_device_id")
	if all := listField(b.get("/v1/devices").decodeObject(), "devices"); len(all) != 1 { // the device that reported
		t.Errorf("devices %v", all)
	}
	if of := listField(b.get("/v1/tasks?device=@bootstrap/job").expectStatus(200).decodeObject(), "tasks"); len(of) != 1 {
		t.Errorf("tasks of the holder: %v", of)
	}
}

func TestLeasesThatDoNotFitAreRefused(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.putPool("p", `{"capacity":2}`)
	b.putPool("q", `{"capacity":2}`)
	for body, part := range map[string]string{
		`{"holder":"a/b"}`:      "holder",
		`{"holder":"@a"}`:       "holder",
		`{"lease_ms":1000}`:     "lease_ms: at least 2000",
		`{"lease_ms":86400001}`: "lease_ms",
		`{"metadata":[1]}`:      "metadata: must be a JSON object",
		`{"metadata":{"a":"` + strings.Repeat("x", 4096) + `"}}`: "metadata: at most 4096 bytes",
	} {
		b.requestLease(adminToken, "p", body, 0).expectProblem(422, "invalid_field").expectMentions(t, part)
	}
	b.requestLease(adminToken, "nowhere", `{}`, 0).expectProblem(404, "not_found")
	b.requestLease(adminToken, "p", `{"holder":"one"}`, 0).expectStatus(201)
	b.requestLease(adminToken, "q", `{"holder":"one"}`, 0).expectProblem(409, "already_exists").expectMentions(t, "another pool")
	b.call("PATCH", "/v1/pools/p", adminToken, `{"callers":1}`).expectStatus(200)
	if p := b.call("PATCH", "/v1/pools/p", adminToken, `{"capacity":3}`).expectStatus(200).decodeObject(); p["callers"] != 1.0 {
		t.Errorf("callers %v", p["callers"])
	}
	refused := b.requestLease(adminToken, "p", `{"holder":"two"}`, 0)
	refused.expectProblem(409, "no_slot")
	if refused.decodeObject()["reason"] != "callers_full" {
		t.Errorf("%s", refused.body)
	}
	if p := b.call("PATCH", "/v1/pools/p", adminToken, `{"callers":null}`).expectStatus(200).decodeObject(); p["callers"] != nil {
		t.Errorf("callers %v", p["callers"])
	}
	b.requestLease(adminToken, "p", `{"holder":"two"}`, 0).expectStatus(201)
}

// The batch that contains the leases of callers is marked as a system batch. If it is cancelled, its leases end
// like tasks and none is retried. The next lease gets a new batch.
func TestTheBatchOfLeasesIsTheSystems(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.putPool("p", `{"capacity":2}`)
	held := b.requestLease(adminToken, "p", `{"holder":"job"}`, 0).expectStatus(201).decodeObject()
	path := "/v1/pools/p/leases/" + numberText(held["lease"])
	batch := asObject(listField(b.get("/v1/batches?pool=p").expectStatus(200).decodeObject(), "batches")[0])
	if batch["name"] != "callers" || batch["kind"] != "lease" || batch["system"] != true || batch["total"] != 1.0 {
		t.Errorf("%v", batch)
	}
	of := "/v1/batches/" + numberText(batch["id"])
	b.call("PATCH", of, adminToken, `{"weight":5}`).expectStatus(200)
	b.call("POST", of+"/cancel", adminToken, nil).expectStatus(200)
	renew := `{"token":` + numberText(held["token"]) + `}`
	lost := b.call("POST", path+"/renew", adminToken, renew)
	lost.expectProblem(409, "lease_lost")
	if lost.decodeObject()["cancel"] != "cancelled" {
		t.Errorf("%s", lost.body)
	}
	b.call("DELETE", path+"?token="+numberText(held["token"]), adminToken, nil).expectStatus(204)
	if next := b.requestLease(adminToken, "p", `{"holder":"job"}`, 0).expectStatus(201).decodeObject(); next["lease"] == held["lease"] {
		t.Errorf("%v", next)
	}
	second := b.requestLease(adminToken, "p", `{"holder":"two"}`, 0).expectStatus(201).decodeObject()
	b.call("POST", "/v1/pools/p/slots/"+numberText(second["slot"])+"/release", adminToken, `{"reason":"a test","now":true}`).expectStatus(200)
	gone := b.call("POST", "/v1/pools/p/leases/"+numberText(second["lease"])+"/renew", adminToken, `{"token":`+numberText(second["token"])+`}`)
	gone.expectProblem(409, "lease_lost")
	if f := gone.decodeObject(); f["reason"] != "released" || f["cancel"] != nil {
		t.Errorf("%v", f)
	}
	b.call("POST", "/v1/tasks/"+numberText(second["lease"])+"/retry", adminToken, nil).expectProblem(409, "not_retriable")
	if n := b.call("POST", "/v1/tasks/retry?pool=p", adminToken, nil).expectStatus(200).decodeObject()["tasks"]; n != 0.0 {
		t.Errorf("%v leases were retried", n)
	}
}

// A caller can end its own leases. It can neither read nor change the leases of another caller.
func TestCallersHaveTheirOwnLeases(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.putPool("p", `{"capacity":5}`)
	one, other := b.createCallerToken(`"pools":["*"]`), b.createCallerToken(`"pools":["p"]`)
	held := b.requestLease(one, "p", `{"holder":"job"}`, 0).expectStatus(201).decodeObject()
	path := "/v1/pools/p/leases/" + numberText(held["lease"])
	b.call("GET", path, other, nil).expectProblem(404, "not_found")
	b.call("POST", path+"/renew", other, `{"token":`+numberText(held["token"])+`}`).expectProblem(404, "not_found")
	b.call("DELETE", path+"?token="+numberText(held["token"]), other, nil).expectProblem(404, "not_found")
	if all := listField(b.call("GET", "/v1/pools/p/leases", other, nil).expectStatus(200).decodeObject(), "leases"); len(all) != 0 {
		t.Errorf("%v", all)
	}
	if mine := b.requestLease(other, "p", `{"holder":"job"}`, 0).expectStatus(201).decodeObject(); mine["lease"] == held["lease"] {
		t.Errorf("two callers have one lease: %v", mine)
	}
	b.call("DELETE", path+"?token="+numberText(held["token"]), one, nil).expectStatus(204)
}

// A pool limits the length of leases, both when a caller acquires one and when it renews one.
func TestTheLongestLeaseOfAPool(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	p := b.call("PUT", "/v1/pools/p", adminToken, `{"capacity":3,"lease_ms":60000}`).expectStatus(201).decodeObject()
	if p["longest_lease_ms"] != 86400000.0 || p["stands_until"] != nil {
		t.Errorf("longest lease %v, stands until %v", p["longest_lease_ms"], p["stands_until"])
	}
	held := b.requestLease(adminToken, "p", `{"holder":"long","lease_ms":86400000}`, 0).expectStatus(201).decodeObject()
	for body, part := range map[string]string{`{"longest_lease_ms":0}`: "longest_lease_ms", `{"longest_lease_ms":86400001}`: "longest_lease_ms", `{"longest_lease_ms":1}`: "longest_lease_ms"} {
		b.call("PATCH", "/v1/pools/p", adminToken, body).expectProblem(422, "invalid_field").expectMentions(t, part)
	}
	b.call("PATCH", "/v1/pools/p", adminToken, `{"longest_lease_ms":120000}`).expectStatus(200)
	b.requestLease(adminToken, "p", `{"holder":"other","lease_ms":120001}`, 0).expectProblem(422, "invalid_field").expectMentions(t, "at most 120000")
	b.requestLease(adminToken, "p", `{"holder":"other","lease_ms":120000}`, 0).expectStatus(201)
	renew, token := "/v1/pools/p/leases/"+numberText(held["lease"])+"/renew", numberText(held["token"])
	b.call("POST", renew, adminToken, `{"token":`+token+`,"lease_ms":120001}`).expectProblem(422, "invalid_field").expectMentions(t, "at most 120000")
	b.call("POST", renew, adminToken, `{"token":`+token+`}`).expectStatus(200)
	if p := b.call("PATCH", "/v1/pools/p", adminToken, `{"longest_lease_ms":null}`).expectStatus(200).decodeObject(); p["longest_lease_ms"] != 86400000.0 {
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
		if p := b.call(method, "/v1/pools/p", adminToken, body).expectStatus(status).decodeObject(); p["longest_sleep_ms"] != want {
			t.Errorf("%s %s: longest sleep %v, want %v", method, body, p["longest_sleep_ms"], want)
		}
	}
	expect("PUT", `{"capacity":3}`, 600000)
	expect("PATCH", `{"longest_sleep_ms":3600000}`, 3600000)
	expect("PATCH", `{"capacity":4}`, 3600000)
	for _, body := range []string{`{"longest_sleep_ms":0}`, `{"longest_sleep_ms":86400001}`} {
		b.call("PATCH", "/v1/pools/p", adminToken, body).expectProblem(422, "invalid_field").expectMentions(t, "longest_sleep_ms")
	}
	expect("PATCH", `{"longest_sleep_ms":null}`, 600000)
	if text := string(b.call("GET", "/v1/events?kind=pool.changed", adminToken, nil).expectStatus(200).body); !strings.Contains(text, "longest_sleep=1h0m0s") {
		t.Errorf("the log does not name the change: %s", text)
	}
}
