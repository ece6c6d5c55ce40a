package api_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

func TestOlderTokensHoldForTheOverlap(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		first := b.createDevice("ar-7")
		b.call("POST", "/v1/devices/ar-7/report", first, `{}`).expectStatus(200)
		rotate := func(body any) string {
			made := b.call("POST", "/v1/devices/ar-7/token", adminToken, body).expectStatus(200).decodeObject()
			token, _ := made["token"].(string)
			if made["id"] != "ar-7" || len(token) != 43 {
				b.Fatalf("rotated: %v", made)
			}
			until, _ := made["older_until"].(string)
			at, err := time.Parse(time.RFC3339, until)
			if day := time.Until(at); body == nil && (err != nil || day < 23*time.Hour || day > 25*time.Hour) {
				b.Errorf("older tokens until %s, want a day from now", until)
			}
			return token
		}
		second := rotate(nil)
		for _, token := range []string{first, second} {
			b.call("POST", "/v1/devices/ar-7/report", token, `{}`).expectStatus(200)
		}
		third := rotate(`{"overlap_ms":0}`)
		for _, token := range []string{first, second} {
			b.call("POST", "/v1/devices/ar-7/report", token, `{}`).expectProblem(401, "unauthenticated")
		}
		b.call("POST", "/v1/devices/ar-7/report", third, `{}`).expectStatus(200)
		b.call("POST", "/v1/devices/ar-7/report", fleetToken, `{}`).expectProblem(403, "forbidden")
		for _, body := range []string{`{"overlap_ms":-1}`, `{"overlap_ms":2592000001}`, `{"overlap_ms":"1"}`, `{"overlap_ms":1.5}`} {
			b.call("POST", "/v1/devices/ar-7/token", adminToken, body).expectProblem(422, "invalid_field").expectMentions(b.T, "overlap_ms")
		}
		b.call("POST", "/v1/devices/ar-7/token", adminToken, `{"overlap":0}`).expectProblem(400, "unknown_field")
		rotate(`{"overlap_ms":null}`)
		b.call("POST", "/v1/devices/ar-7/report", third, `{}`).expectStatus(200)
	})
}

func TestABlockedDeviceIsGrantedNothing(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.putPool("p", `{"capacity":2}`)
		b.createBatch(`{"name":"b","pool":"p","devices":["d-1","d-1"]}`)
		g := b.reportUntilGranted("d-1")
		for range 2 {
			if got := b.call("POST", "/v1/devices/d-1/block", adminToken, nil).expectStatus(200).decodeObject(); got["blocked"] != true {
				b.Errorf("blocked: %v", got)
			}
		}
		var reply struct {
			Reason string
			Cancel []struct{ Why string }
		}
		b.sendReport("d-1", `{"id":"x"}`).expectStatus(200).decode(&reply)
		if reply.Reason != "blocked" || len(reply.Cancel) != 1 || reply.Cancel[0].Why != "blocked" {
			b.Errorf("a blocked device hears %+v", reply)
		}
		b.sendReport("d-1", g.resultBody("succeeded", "")).expectStatus(200)
		if got := b.call("POST", "/v1/devices/d-1/unblock", adminToken, nil).expectStatus(200).decodeObject(); got["blocked"] != false {
			b.Errorf("unblocked: %v", got)
		}
		b.reportUntilGranted("d-1")
		kinds := b.deviceEventKinds("d-1")
		for _, kind := range []string{"device.blocked", "device.unblocked"} {
			if n := len(kinds) - len(slices.DeleteFunc(slices.Clone(kinds), func(k string) bool { return k == kind })); n != 1 {
				b.Errorf("%d events %s, want 1 of %v", n, kind, kinds)
			}
		}
	})
}

func (b *testAPI) deviceEventKinds(device string) (kinds []string) {
	b.Helper()
	events, err := b.store.Events(b.Context(), store.EventFilter{Device: device})
	if err != nil {
		b.Fatal(err)
	}
	for _, e := range events {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

func TestADeletedDeviceLosesItsTokensAndTasks(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		token := b.createDevice("d-1")
		b.putPool("p", `{"capacity":1}`)
		b.createBatch(`{"name":"b","pool":"p","devices":["d-1","d-1","d-1"]}`)
		g := b.reportUntilGranted("d-1")
		b.call("DELETE", "/v1/devices/d-1", adminToken, nil).expectProblem(409, "open_tasks").expectMentions(b.T, "cancel=true")
		b.call("POST", "/v1/devices/d-1/report", token, `{"accept":false}`).expectStatus(200)
		got := b.call("DELETE", "/v1/devices/d-1?cancel=true", adminToken, nil).expectStatus(200).decodeObject()
		if got["id"] != "d-1" || got["cancelled"] != 2.0 || got["stopping"] != 1.0 {
			b.Errorf("deleted: %v", got)
		}
		b.get("/v1/devices/d-1").expectProblem(404, "not_found")
		b.call("POST", "/v1/devices/d-1/report", token, g.resultBody("succeeded", "")).expectProblem(401, "unauthenticated")
		// The slot of the deleted device stays held, because the device may still use the external system.
		if held := b.get("/v1/pools/p/slots").expectStatus(200).decodeObject()["held"]; held != 1.0 {
			b.Errorf("%v held, want its slot", held)
		}
		b.createBatch(`{"name":"b","pool":"p","devices":["d-2"]}`)
		b.sendReport("d-2", `{"id":"x"}`).expectStatus(200)
		// The deleted device reports with a fleet token. It is registered again like any other device.
		var reply struct{ Acks []struct{ Outcome string } }
		b.sendReport("d-1", g.resultBody("succeeded", "")).expectStatus(200).decode(&reply)
		if len(reply.Acks) != 1 || reply.Acks[0].Outcome != "recorded" {
			b.Errorf("acks %+v", reply.Acks)
		}
		b.call("DELETE", "/v1/devices/d-1", adminToken, nil).expectStatus(200)
		b.call("DELETE", "/v1/devices/d-1", adminToken, nil).expectProblem(404, "not_found")
		b.createDevice("d-1")
	})
}

func TestChangesOfDevicesRefuseBadInput(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	for _, call := range []string{"DELETE ", "POST /token", "POST /block", "POST /unblock"} {
		method, rest, _ := strings.Cut(call, " ")
		b.call(method, "/v1/devices/nobody"+rest, adminToken, nil).expectProblem(404, "not_found")
		for id, code := range badDeviceIDs() {
			b.call(method, "/v1/devices/"+id+rest, adminToken, nil).expectProblem(400, code)
		}
	}
	b.createDevice("d")
	b.call("DELETE", "/v1/devices/d?cancel=perhaps", adminToken, nil).expectProblem(422, "invalid_field").expectMentions(t, "cancel")
	b.get("/v1/devices/d").expectStatus(200)
}

// brokenAccounts manages accounts at a broker that cannot be reached.
type brokenAccounts struct{}

var errNoBroker = errors.New("connection refused by 10.0.0.7")

func (brokenAccounts) Set(context.Context, ...devices.Account) error { return errNoBroker }
func (brokenAccounts) AsksLedger() bool                              { return false }
func (brokenAccounts) Enable(context.Context, devices.ID) error      { return errNoBroker }
func (brokenAccounts) Disable(context.Context, devices.ID) error     { return errNoBroker }
func (brokenAccounts) Delete(context.Context, devices.ID) error      { return errNoBroker }
func (brokenAccounts) Disconnect(context.Context, devices.ID) error  { return errNoBroker }

func TestWithoutTheBrokerNoTokenIsMade(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t, func(s *testOptions) { s.dispatcher.Accounts = brokenAccounts{} })
	b.store.RecordAccountChanges()
	b.sendReport("old", `{}`).expectStatus(200)
	for call, body := range map[string]any{"/v1/devices": `{"id":"new"}`, "/v1/devices/old/token": nil} {
		a := b.call("POST", call, adminToken, body)
		if p := a.expectProblem(503, "broker_unavailable"); strings.Contains(p.Detail, "10.0.0.7") || a.header.Get("Retry-After") != "3" {
			t.Errorf("%s: %s, Retry-After %q", call, a.body, a.header.Get("Retry-After"))
		}
	}
	b.get("/v1/devices/new").expectProblem(404, "not_found")
	b.call("POST", "/v1/devices/old/block", adminToken, nil).expectStatus(200)
	b.call("DELETE", "/v1/devices/old", adminToken, nil).expectStatus(200)
}
