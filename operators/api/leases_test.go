package api_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// lease requests a lease. If seconds is not 0, the request waits for a slot.
func (b *bench) lease(token, pool, body string, seconds int) answer {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), http.MethodPost, b.url+"/v1/pools/"+pool+"/leases", strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	if seconds > 0 {
		request.Header.Set("Prefer", "wait="+strconv.Itoa(seconds))
	}
	return b.do(request)
}

// text converts a number of a response to text for a path.
func text(value any) string {
	n, _ := value.(float64)
	return strconv.FormatFloat(n, 'f', -1, 64)
}

func TestCallersLeaseSlots(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		b.pool("ci-1", `{"capacity":1,"lease_ms":60000}`)
		token := b.caller(`"pools":["ci-*"]`)
		got := b.lease(token, "ci-1", `{"holder":"job-17","lease_ms":30000,"metadata":{"branch":"main"}}`, 0).must(201).fields()
		if got["state"] != "held" || got["holder"] != "job-17" || got["slot"] != 0.0 || got["pool"] != "ci-1" || object(got["metadata"])["branch"] != "main" {
			b.Fatalf("%v", got)
		}
		if ms, _ := got["lease_ms"].(float64); ms > 24_000 || ms < 20_000 {
			b.Errorf("lease_ms %v, want 30 s less a fifth", ms)
		}
		again := b.lease(token, "ci-1", `{"holder":"job-17"}`, 5).must(201).fields()
		if again["token"] != got["token"] || again["lease"] != got["lease"] {
			b.Errorf("asked again: %v", again)
		}

		refused := b.lease(token, "ci-1", `{}`, 0)
		refused.problem(409, "no_slot")
		if f := refused.fields(); f["reason"] != "pool_full" || f["position"] != 1.0 || f["retry_after_ms"] == nil || refused.header.Get("Retry-After") == "" {
			b.Errorf("refused: %v, Retry-After %q", f, refused.header.Get("Retry-After"))
		}
		waits := b.lease(token, "ci-1", `{"holder":"next"}`, 1).must(202)
		if f := waits.fields(); f["state"] != "waiting" || f["reason"] != "pool_full" || f["position"] != 1.0 || waits.header.Get("Preference-Applied") != "wait=1" {
			b.Errorf("waits: %v", f)
		}

		all := list(b.call("GET", "/v1/pools/ci-1/leases", token, nil).must(200).fields(), "leases")
		if len(all) != 2 || object(all[0])["holder"] != "job-17" || object(all[1])["state"] != "waiting" {
			b.Errorf("leases %v", all)
		}
		path := "/v1/pools/ci-1/leases/" + text(got["lease"])
		if one := b.call("GET", path, token, nil).must(200).fields(); one["token"] != got["token"] {
			b.Errorf("lease %v", one)
		}
		slot := object(list(b.get("/v1/pools/ci-1/slots").must(200).fields(), "slots")[0])
		if caller, _ := slot["caller"].(string); !strings.HasSuffix(caller, "/job-17") || slot["device"] != "@"+caller {
			b.Errorf("slot %v", slot)
		}

		renewed := b.call("POST", path+"/renew", token, `{"token":`+text(got["token"])+`,"lease_ms":120000}`).must(200).fields()
		if ms, _ := renewed["lease_ms"].(float64); ms < 100_000 {
			b.Errorf("renewed: %v", renewed)
		}
		another := text(got["token"]) + "0"
		lost := b.call("POST", path+"/renew", token, `{"token":`+another+`}`)
		lost.problem(409, "lease_lost")
		b.call("DELETE", path+"?token="+another, token, nil).problem(409, "lease_lost")
		b.call("DELETE", path, token, nil).problem(422, "invalid_field")
		for range 2 {
			b.call("DELETE", path+"?token="+text(got["token"]), token, nil).must(204)
		}
		b.call("GET", path, token, nil).problem(404, "not_found")
		b.lease(token, "ci-1", `{"holder":"next"}`, 5).must(201)
	})
}

// No device can act as a caller: no transport accepts such a device id.
func TestNoDeviceIsACaller(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", `{"capacity":2}`)
	held := b.lease(adminToken, "p", `{"holder":"job"}`, 0).must(201).fields()
	result := `{"id":"r","results":[{"task":` + text(held["lease"]) + `,"token":` + text(held["token"]) + `,"status":"succeeded"}]}`
	for _, name := range []string{"@bootstrap%2Fjob", "%40bootstrap%2fjob"} {
		b.report(name, result).problem(400, "invalid_device_id")
	}
	b.call("POST", "/v1/devices", adminToken, `{"id":"@bootstrap/job"}`).problem(400, "invalid_device_id")
	b.call("POST", "/v1/batches", adminToken, `{"pool":"p","devices":["@bootstrap/job"]}`).problem(422, "invalid_field").names(t, "invalid_device_id")
	b.postAs("POST", "/v1/devices", "text/csv", "id\n@bootstrap/job\n").problem(422, "invalid_line")
	b.report("another", result).must(200)
	if one := b.get("/v1/pools/p/leases/" + text(held["lease"])).must(200).fields(); one["state"] != "held" {
		t.Errorf("%v", one)
	}
	b.get("/v1/devices/@bootstrap%2Fjob").problem(400, "invalid_device_id")
	if all := list(b.get("/v1/devices").fields(), "devices"); len(all) != 1 { // the device that reported
		t.Errorf("devices %v", all)
	}
	if of := list(b.get("/v1/tasks?device=@bootstrap/job").must(200).fields(), "tasks"); len(of) != 1 {
		t.Errorf("tasks of the holder: %v", of)
	}
}

func TestLeasesThatDoNotFitAreRefused(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", `{"capacity":2}`)
	b.pool("q", `{"capacity":2}`)
	for body, part := range map[string]string{
		`{"holder":"a/b"}`:      "holder",
		`{"holder":"@a"}`:       "holder",
		`{"lease_ms":1000}`:     "lease_ms: at least 2000",
		`{"lease_ms":86400001}`: "lease_ms",
		`{"metadata":[1]}`:      "metadata: an object",
		`{"metadata":{"a":"` + strings.Repeat("x", 4096) + `"}}`: "metadata: at most 4096 bytes",
	} {
		b.lease(adminToken, "p", body, 0).problem(422, "invalid_field").names(t, part)
	}
	b.lease(adminToken, "nowhere", `{}`, 0).problem(404, "not_found")
	b.lease(adminToken, "p", `{"holder":"one"}`, 0).must(201)
	b.lease(adminToken, "q", `{"holder":"one"}`, 0).problem(409, "already_exists").names(t, "another pool")
	b.call("PATCH", "/v1/pools/p", adminToken, `{"callers":1}`).must(200)
	if p := b.call("PATCH", "/v1/pools/p", adminToken, `{"capacity":3}`).must(200).fields(); p["callers"] != 1.0 {
		t.Errorf("callers %v", p["callers"])
	}
	refused := b.lease(adminToken, "p", `{"holder":"two"}`, 0)
	refused.problem(409, "no_slot")
	if refused.fields()["reason"] != "callers_full" {
		t.Errorf("%s", refused.body)
	}
	if p := b.call("PATCH", "/v1/pools/p", adminToken, `{"callers":null}`).must(200).fields(); p["callers"] != nil {
		t.Errorf("callers %v", p["callers"])
	}
	b.lease(adminToken, "p", `{"holder":"two"}`, 0).must(201)
}

// The batch of the leases is marked as a batch of the system. Cancelling it ends its leases like tasks, retries none of
// them, and the next lease creates a new batch.
func TestTheBatchOfLeasesIsTheSystems(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", `{"capacity":2}`)
	held := b.lease(adminToken, "p", `{"holder":"job"}`, 0).must(201).fields()
	path := "/v1/pools/p/leases/" + text(held["lease"])
	batch := object(list(b.get("/v1/batches?pool=p").must(200).fields(), "batches")[0])
	if batch["name"] != "callers" || batch["kind"] != "lease" || batch["system"] != true || batch["total"] != 1.0 {
		t.Errorf("%v", batch)
	}
	of := "/v1/batches/" + text(batch["id"])
	b.call("PATCH", of, adminToken, `{"weight":5}`).must(200)
	b.call("POST", of+"/cancel", adminToken, nil).must(200)
	renew := `{"token":` + text(held["token"]) + `}`
	lost := b.call("POST", path+"/renew", adminToken, renew)
	lost.problem(409, "lease_lost")
	if lost.fields()["cancel"] != "cancelled" {
		t.Errorf("%s", lost.body)
	}
	b.call("DELETE", path+"?token="+text(held["token"]), adminToken, nil).must(204)
	if next := b.lease(adminToken, "p", `{"holder":"job"}`, 0).must(201).fields(); next["lease"] == held["lease"] {
		t.Errorf("%v", next)
	}
	second := b.lease(adminToken, "p", `{"holder":"two"}`, 0).must(201).fields()
	b.call("POST", "/v1/pools/p/slots/"+text(second["slot"])+"/release", adminToken, `{"reason":"a test","now":true}`).must(200)
	gone := b.call("POST", "/v1/pools/p/leases/"+text(second["lease"])+"/renew", adminToken, `{"token":`+text(second["token"])+`}`)
	gone.problem(409, "lease_lost")
	if f := gone.fields(); f["reason"] != "released" || f["cancel"] != nil {
		t.Errorf("%v", f)
	}
	b.call("POST", "/v1/tasks/"+text(second["lease"])+"/retry", adminToken, nil).problem(409, "not_retriable")
	if n := b.call("POST", "/v1/tasks/retry?pool=p", adminToken, nil).must(200).fields()["tasks"]; n != 0.0 {
		t.Errorf("%v leases were retried", n)
	}
}

// A caller can neither read nor change the leases of another caller, and can end its own.
func TestCallersHaveTheirOwnLeases(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", `{"capacity":5}`)
	one, other := b.caller(`"pools":["*"]`), b.caller(`"pools":["p"]`)
	held := b.lease(one, "p", `{"holder":"job"}`, 0).must(201).fields()
	path := "/v1/pools/p/leases/" + text(held["lease"])
	b.call("GET", path, other, nil).problem(404, "not_found")
	b.call("POST", path+"/renew", other, `{"token":`+text(held["token"])+`}`).problem(404, "not_found")
	b.call("DELETE", path+"?token="+text(held["token"]), other, nil).problem(404, "not_found")
	if all := list(b.call("GET", "/v1/pools/p/leases", other, nil).must(200).fields(), "leases"); len(all) != 0 {
		t.Errorf("%v", all)
	}
	if mine := b.lease(other, "p", `{"holder":"job"}`, 0).must(201).fields(); mine["lease"] == held["lease"] {
		t.Errorf("two callers have one lease: %v", mine)
	}
	b.call("DELETE", path+"?token="+text(held["token"]), one, nil).must(204)
}

// A pool limits the length of the leases that callers acquire and renew.
func TestTheLongestLeaseOfAPool(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	p := b.call("PUT", "/v1/pools/p", adminToken, `{"capacity":3,"lease_ms":60000}`).must(201).fields()
	if p["longest_lease_ms"] != 86400000.0 || p["stands_until"] != nil {
		t.Errorf("longest lease %v, stands until %v", p["longest_lease_ms"], p["stands_until"])
	}
	held := b.lease(adminToken, "p", `{"holder":"long","lease_ms":86400000}`, 0).must(201).fields()
	for body, part := range map[string]string{`{"longest_lease_ms":0}`: "longest_lease_ms", `{"longest_lease_ms":86400001}`: "longest_lease_ms", `{"longest_lease_ms":1}`: "longest_lease_ms"} {
		b.call("PATCH", "/v1/pools/p", adminToken, body).problem(422, "invalid_field").names(t, part)
	}
	b.call("PATCH", "/v1/pools/p", adminToken, `{"longest_lease_ms":120000}`).must(200)
	b.lease(adminToken, "p", `{"holder":"other","lease_ms":120001}`, 0).problem(422, "invalid_field").names(t, "at most 120000")
	b.lease(adminToken, "p", `{"holder":"other","lease_ms":120000}`, 0).must(201)
	renew, token := "/v1/pools/p/leases/"+text(held["lease"])+"/renew", text(held["token"])
	b.call("POST", renew, adminToken, `{"token":`+token+`,"lease_ms":120001}`).problem(422, "invalid_field").names(t, "at most 120000")
	b.call("POST", renew, adminToken, `{"token":`+token+`}`).must(200)
	if p := b.call("PATCH", "/v1/pools/p", adminToken, `{"longest_lease_ms":null}`).must(200).fields(); p["longest_lease_ms"] != 86400000.0 {
		t.Errorf("longest lease %v", p["longest_lease_ms"])
	}
}
