package api_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fleetslots/dispatcher/operators"
)

// auditedCall is one API call that changes something, with the events that it must leave in the log.
type auditedCall struct {
	operation  string // the operationId in the OpenAPI document
	path       string
	body       string
	status     int
	eventKinds []string
}

// auditedCalls returns the calls in an order in which each call finds the things that it needs. A call that is
// refused leaves no event.
func auditedCalls(tokenID int64) []auditedCall {
	const (
		pool, batch, device, task = "/v1/pools/a", "/v1/batches/2", "/v1/devices/d-9", "/v1/tasks/3"
	)
	return []auditedCall{
		{"PUT /v1/pools/{pool}", pool, `{"capacity":2}`, 201, []string{"pool.created"}},
		{"PUT /v1/pools/{pool}", pool, `{"capacity":-2}`, 422, nil},
		{"PUT /v1/pools/{pool}", pool, `{"capacity":3}`, 200, []string{"pool.changed"}},
		{"PATCH /v1/pools/{pool}", pool, `{"capacity":4}`, 200, []string{"pool.changed"}},
		{"PATCH /v1/pools/{pool}", "/v1/pools/none", `{"capacity":4}`, 404, nil},
		{"POST /v1/pools/{pool}/pause", pool + "/pause", `{"reason":"r"}`, 200, []string{"pool.changed"}},
		{"POST /v1/pools/{pool}/resume", pool + "/resume", ``, 200, []string{"pool.changed"}},
		{"POST /v1/pools/pause", "/v1/pools/pause?dry_run=true", ``, 200, nil},
		{"POST /v1/pools/pause", "/v1/pools/pause", `{"reason":"r"}`, 200, []string{"pools.paused"}},
		{"POST /v1/pools/pause", "/v1/pools/pause", ``, 200, nil},
		{"POST /v1/pools/resume", "/v1/pools/resume", ``, 200, []string{"pools.resumed"}},
		{"POST /v1/batches", "/v1/batches", `{"pool":"a","devices":["x","y"]}`, 201, []string{"batch.created"}},
		{"POST /v1/batches", "/v1/batches", `{"pool":"none","devices":["x"]}`, 422, nil},
		{"PATCH /v1/batches/{id}", batch, `{"priority":3}`, 200, []string{"batch.changed"}},
		{"PATCH /v1/batches/{id}", batch, `{"weight":0}`, 422, nil},
		{"POST /v1/batches/{id}/pause", batch + "/pause", `{}`, 200, []string{"batch.paused"}},
		{"POST /v1/batches/{id}/pause", batch + "/pause", `{}`, 200, nil},
		{"POST /v1/batches/{id}/resume", batch + "/resume", ``, 200, []string{"batch.resumed"}},
		{"POST /v1/tasks/{id}/cancel", task + "/cancel", ``, 200, []string{"task.cancelled"}},
		{"POST /v1/tasks/{id}/cancel", task + "/cancel", ``, 200, nil},
		{"POST /v1/tasks/{id}/retry", task + "/retry", ``, 200, []string{"task.retried"}},
		{"POST /v1/tasks/cancel", "/v1/tasks/cancel?batch=2", ``, 200, []string{"task.cancelled", "task.cancelled"}},
		{"POST /v1/tasks/cancel", "/v1/tasks/cancel", ``, 422, nil},
		{"POST /v1/tasks/retry", "/v1/tasks/retry?batch=2", ``, 200, []string{"task.retried", "task.retried"}},
		{"POST /v1/batches/{id}/cancel", batch + "/cancel", ``, 200, []string{"batch.cancelled"}},
		{"POST /v1/devices", "/v1/devices", `{"id":"d-9"}`, 201, []string{"device.created"}},
		{"POST /v1/devices", "/v1/devices", `{"id":"d-9"}`, 409, nil},
		{"PATCH /v1/devices/{id}", device, `{"tags":{"a":"b"}}`, 200, []string{"device.changed"}},
		{"POST /v1/devices/retag", "/v1/devices/retag?tag=a:b", `{"set":{"c":"d"}}`, 200, []string{"device.changed"}},
		{"POST /v1/devices/retag", "/v1/devices/retag?tag=a:b", `{"set":{"c":"d"}}`, 200, nil},
		{"POST /v1/devices/{id}/block", device + "/block", `{"reason":"r"}`, 200, []string{"device.blocked"}},
		{"POST /v1/devices/{id}/block", device + "/block", ``, 200, nil},
		{"POST /v1/devices/{id}/unblock", device + "/unblock", ``, 200, []string{"device.unblocked"}},
		{"POST /v1/devices/block", "/v1/devices/block?tag=c:d", ``, 200, []string{"device.blocked"}},
		{"POST /v1/devices/block", "/v1/devices/block?tag=c:d", ``, 200, nil},
		{"POST /v1/devices/unblock", "/v1/devices/unblock?tag=c:d&dry_run=true", ``, 200, nil},
		{"POST /v1/devices/unblock", "/v1/devices/unblock?tag=c:d", ``, 200, []string{"device.unblocked"}},
		{"POST /v1/devices/{id}/token", device + "/token", `{}`, 200, []string{"device.token_added"}},
		{"POST /v1/devices/delete", "/v1/devices/delete", ``, 422, nil},
		{"POST /v1/devices", "/v1/devices", `{"id":"d-8"}`, 201, []string{"device.created"}},
		{"POST /v1/devices/delete", "/v1/devices/delete?prefix=d-8&dry_run=true", ``, 200, nil},
		{"POST /v1/devices/delete", "/v1/devices/delete?prefix=d-8", ``, 200, []string{"device.deleted"}},
		{"POST /v1/devices/delete", "/v1/devices/delete?prefix=d-8", ``, 200, nil},
		{"DELETE /v1/devices/{id}", device, ``, 200, []string{"device.deleted"}},
		{"DELETE /v1/devices/{id}", device, ``, 404, nil},
		{"POST /v1/tokens", "/v1/tokens", `{"name":"n","role":"viewer"}`, 201, []string{"token.created"}},
		{"POST /v1/tokens/{id}/rotate", fmt.Sprint("/v1/tokens/", tokenID, "/rotate"), ``, 200, []string{"token.rotated"}},
		{"POST /v1/tokens/{id}/rotate", "/v1/tokens/999/rotate", ``, 404, nil},
		{"DELETE /v1/tokens/{id}", fmt.Sprint("/v1/tokens/", tokenID), ``, 200, []string{"token.revoked"}},
		{"DELETE /v1/tokens/{id}", "/v1/tokens/999", ``, 404, nil},
		{"POST /v1/pools/{pool}/slots/{slot}/release", "/v1/pools/p/slots/0/release", `{"reason":"r","now":true}`, 200, []string{"slot.released", "task.cancelled"}},
		{"POST /v1/pools/{pool}/slots/{slot}/release", "/v1/pools/p/slots/0/release", `{"reason":"r","now":true}`, 404, nil},
		{"PUT /v1/profiles/{profile}", "/v1/profiles/f", `{}`, 201, []string{"profile.created"}},
		{"PUT /v1/profiles/{profile}", "/v1/profiles/f", `{"limits":[{"name":"x"}]}`, 422, nil},
		{"PUT /v1/profiles/{profile}", "/v1/profiles/f", `{"limits":[` + perAccountPolicy + `]}`, 200, []string{"profile.changed"}},
		{"PUT /v1/profiles/{profile}", "/v1/profiles/f", `{"limits":[` + perAccountPolicy + `]}`, 200, nil},
		{"DELETE /v1/profiles/{profile}", "/v1/profiles/f", ``, 204, []string{"profile.deleted"}},
		{"DELETE /v1/profiles/{profile}", "/v1/profiles/f", ``, 404, nil},
		{"PUT /v1/limits/{set}", "/v1/limits/f?dry_run=true", limitSetBody(), 200, nil},
		{"PUT /v1/limits/{set}", "/v1/limits/f", `{}`, 201, []string{"limit_set.created"}},
		{"PUT /v1/limits/{set}", "/v1/limits/f", `{"limits":[` + perAccountPolicy + `]}`, 422, nil},
		{"PUT /v1/limits/{set}", "/v1/limits/f", limitSetBody(), 200, []string{"limit_set.changed"}},
		{"PUT /v1/limits/{set}", "/v1/limits/f", limitSetBody(), 200, nil},
		{"POST /v1/limits/{set}/take", "/v1/limits/f/take", `{"id":"1"}`, 200, nil},
		{"POST /v1/limits/{set}/return", "/v1/limits/f/return", `{"id":"1"}`, 200, nil},
		{"DELETE /v1/limits/{set}", "/v1/limits/f", ``, 204, []string{"limit_set.deleted"}},
		{"DELETE /v1/limits/{set}", "/v1/limits/f", ``, 404, nil},
		{"POST /v1/pools/{pool}/leases", pool + "/leases", `{"holder":"h"}`, 201, []string{"batch.created", "task.granted"}},
		{"POST /v1/pools/{pool}/leases", pool + "/leases", `{"holder":"h"}`, 201, nil},
		{"POST /v1/pools/{pool}/leases/{lease}/renew", pool + "/leases/5/renew", `{"token":2}`, 200, nil},
		{"DELETE /v1/pools/{pool}/leases/{lease}", pool + "/leases/5?token=2", ``, 204, []string{"task.succeeded"}},
		{"DELETE /v1/pools/{pool}/leases/{lease}", pool + "/leases/5?token=2", ``, 204, nil},
		{"DELETE /v1/pools/{pool}", "/v1/pools/empty", ``, 204, []string{"pool.deleted"}},
		{"DELETE /v1/pools/{pool}", "/v1/pools/empty", ``, 404, nil},
	}
}

// TestEveryActIsOneEvent checks the audit log: it has one event for each thing that an operator changed, and none
// for calls that were refused or changed nothing.
func TestEveryActIsOneEvent(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":1}`)
		b.PutPool("empty", `{"capacity":60}`)
		b.CreateBatch(newBatchBody)
		b.ReportUntilGranted("d-1")
		all := auditedCalls(b.createTokenID())
		rows := map[string]operators.Operation{}
		for id, row := range operators.Operations() {
			rows[row.Method+" "+row.Path] = row
			isAudited := slices.ContainsFunc(all, func(a auditedCall) bool { return a.operation == row.Method+" "+row.Path && a.eventKinds != nil })
			if !isAudited && row.IsLogged {
				b.Errorf("%s: auditedCalls has no call with an event", id)
			}
		}
		for _, a := range all {
			kinds, _ := b.allEvents()
			before := len(kinds)
			method, _, _ := strings.Cut(a.operation, " ")
			var body any
			if a.body != "" {
				body = a.body
			}
			if got := b.Call(method, a.path, adminToken, body); got.Status != a.status {
				b.Errorf("%s %s: %d, want %d: %.200s", method, a.path, got.Status, a.status, got.Body)
			}
			kinds, pools := b.allEvents()
			if diff := cmp.Diff(a.eventKinds, kinds[before:], cmpopts.EquateEmpty()); diff != "" {
				b.Errorf("%s %s %s: %s", method, a.path, a.body, diff)
			}
			for i := before; i < len(kinds); i++ {
				if want := poolOfEvents(rows[a.operation].Scope, a.path); pools[i] != want {
					b.Errorf("%s %s: %s has the pool %q, want %q by the scope of the operation", method, a.path, kinds[i], pools[i], want)
				}
			}
		}
	})
}

// poolOfEvents returns the pool of the events that an operation with this scope leaves. Batches, tasks and inputs of auditedCalls are in
// the pool a.
func poolOfEvents(scope, path string) (pool string) {
	switch scope {
	case "pool":
		return strings.Split(path, "/")[3]
	case "batch", "task", "input":
		return "a"
	}
	return ""
}

// allEvents returns the kinds and the pools of all events in the log, oldest first.
func (b *testAPI) allEvents() (kinds, pools []string) {
	b.Helper()
	for _, e := range listField(b.Get("/v1/events?order=oldest").Expect(200).Object(), "events") {
		kind, _ := asObject(e)["kind"].(string)
		pool, _ := asObject(e)["pool"].(string)
		kinds, pools = append(kinds, kind), append(pools, pool)
	}
	return kinds, pools
}
