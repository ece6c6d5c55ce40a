package api_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	rig "github.com/fleetslots/dispatcher/internal/test/rig"
	"github.com/fleetslots/dispatcher/store"
)

func TestOlderTokensHoldForTheOverlap(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		first := b.createDevice("ar-7")
		b.Call("POST", "/v1/devices/ar-7/report", first, `{}`).Expect(200)
		rotate := func(body any) string {
			made := b.Call("POST", "/v1/devices/ar-7/token", adminToken, body).Expect(200).Object()
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
			b.Call("POST", "/v1/devices/ar-7/report", token, `{}`).Expect(200)
		}
		third := rotate(`{"overlap_ms":0}`)
		for _, token := range []string{first, second} {
			b.Call("POST", "/v1/devices/ar-7/report", token, `{}`).ExpectProblem(401, "unauthenticated")
		}
		b.Call("POST", "/v1/devices/ar-7/report", third, `{}`).Expect(200)
		b.Call("POST", "/v1/devices/ar-7/report", fleetToken, `{}`).ExpectProblem(403, "forbidden")
		for _, body := range []string{`{"overlap_ms":-1}`, `{"overlap_ms":2592000001}`, `{"overlap_ms":"1"}`, `{"overlap_ms":1.5}`} {
			b.Call("POST", "/v1/devices/ar-7/token", adminToken, body).ExpectProblem(422, "invalid_field", "overlap_ms")
		}
		b.Call("POST", "/v1/devices/ar-7/token", adminToken, `{"overlap":0}`).ExpectProblem(400, "unknown_field")
		rotate(`{"overlap_ms":null}`)
		b.Call("POST", "/v1/devices/ar-7/report", third, `{}`).Expect(200)
	})
}

func TestABlockedDeviceIsGrantedNothing(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":2}`)
		b.CreateBatch(`{"name":"b","pool":"p","devices":["d-1","d-1"]}`)
		g := b.ReportUntilGranted("d-1")
		for range 2 {
			if got := b.Call("POST", "/v1/devices/d-1/block", adminToken, nil).Expect(200).Object(); got["blocked"] != true {
				b.Errorf("blocked: %v", got)
			}
		}
		var reply struct {
			Reason string
			Cancel []struct{ Why string }
		}
		b.SendReport("d-1", `{"id":"x"}`).Expect(200).Decode(&reply)
		if reply.Reason != "blocked" || len(reply.Cancel) != 1 || reply.Cancel[0].Why != "blocked" {
			b.Errorf("a blocked device hears %+v", reply)
		}
		b.SendReport("d-1", g.Result("succeeded", "")).Expect(200)
		if got := b.Call("POST", "/v1/devices/d-1/unblock", adminToken, nil).Expect(200).Object(); got["blocked"] != false {
			b.Errorf("unblocked: %v", got)
		}
		b.ReportUntilGranted("d-1")
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
	b.Must(err)
	for _, e := range events {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

func TestADeletedDeviceLosesItsTokensAndTasks(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		token := b.createDevice("d-1")
		b.PutPool("p", `{"capacity":1}`)
		b.CreateBatch(`{"name":"b","pool":"p","devices":["d-1","d-1","d-1"]}`)
		g := b.ReportUntilGranted("d-1")
		b.Call("DELETE", "/v1/devices/d-1", adminToken, nil).ExpectProblem(409, "open_tasks", "cancel=true")
		b.Call("POST", "/v1/devices/d-1/report", token, `{"accept":false}`).Expect(200)
		got := b.Call("DELETE", "/v1/devices/d-1?cancel=true", adminToken, nil).Expect(200).Object()
		if got["id"] != "d-1" || got["cancelled"] != 2.0 || got["stopping"] != 1.0 {
			b.Errorf("deleted: %v", got)
		}
		b.Get("/v1/devices/d-1").ExpectProblem(404, "not_found")
		b.Call("POST", "/v1/devices/d-1/report", token, g.Result("succeeded", "")).ExpectProblem(401, "unauthenticated")
		// The slot of the deleted device stays held, because the device may still use the external system.
		if held := b.Get("/v1/pools/p/slots").Expect(200).Object()["held"]; held != 1.0 {
			b.Errorf("%v held, want its slot", held)
		}
		b.CreateBatch(`{"name":"b","pool":"p","devices":["d-2"]}`)
		b.SendReport("d-2", `{"id":"x"}`).Expect(200)
		// The deleted device reports with a fleet token. It is registered again like any other device.
		var reply struct{ Acks []struct{ Outcome string } }
		b.SendReport("d-1", g.Result("succeeded", "")).Expect(200).Decode(&reply)
		if len(reply.Acks) != 1 || reply.Acks[0].Outcome != "recorded" {
			b.Errorf("acks %+v", reply.Acks)
		}
		b.Call("DELETE", "/v1/devices/d-1", adminToken, nil).Expect(200)
		b.Call("DELETE", "/v1/devices/d-1", adminToken, nil).ExpectProblem(404, "not_found")
		b.createDevice("d-1")
	})
}

func TestChangesOfDevicesRefuseBadInput(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	for _, call := range []string{"DELETE ", "POST /token", "POST /block", "POST /unblock"} {
		method, rest, _ := strings.Cut(call, " ")
		b.Call(method, "/v1/devices/nobody"+rest, adminToken, nil).ExpectProblem(404, "not_found")
		for id, code := range badDeviceIDs() {
			b.Call(method, "/v1/devices/"+id+rest, adminToken, nil).ExpectProblem(400, code)
		}
	}
	b.createDevice("d")
	b.Call("DELETE", "/v1/devices/d?cancel=perhaps", adminToken, nil).ExpectProblem(422, "invalid_field", "cancel")
	b.Get("/v1/devices/d").Expect(200)
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
	b := startEmbedded(t, func(s *rig.Options) { s.Dispatcher.Accounts = brokenAccounts{} })
	b.store.RecordAccountChanges()
	b.SendReport("old", `{}`).Expect(200)
	for call, body := range map[string]any{"/v1/devices": `{"id":"new"}`, "/v1/devices/old/token": nil} {
		a := b.Call("POST", call, adminToken, body)
		if p := a.ExpectProblem(503, "broker_unavailable"); strings.Contains(p.Detail, "10.0.0.7") || a.Header.Get("Retry-After") != "3" {
			t.Errorf("%s: %s, Retry-After %q", call, a.Body, a.Header.Get("Retry-After"))
		}
	}
	b.Get("/v1/devices/new").ExpectProblem(404, "not_found")
	b.Call("POST", "/v1/devices/old/block", adminToken, nil).Expect(200)
	b.Call("DELETE", "/v1/devices/old", adminToken, nil).Expect(200)
}
