package api_test

import (
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestUnknownQueryParametersAreRefused sends an unknown query parameter with every operation, in all forms of its
// response. Each is refused.
func TestUnknownQueryParametersAreRefused(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	operations := b.readDocument().operations()
	for _, name := range slices.Sorted(maps.Keys(operations)) {
		op := operations[name]
		method, path, _ := strings.Cut(name, " ")
		path = regexp.MustCompile(`\{\w+\}`).ReplaceAllString(path, "1")
		if op.OperationID == "report" { // devices in the field send unknown parameters and must not be refused
			b.Call(method, path+"?nosuch=1", fleetToken, `{}`).Expect(200)
			continue
		}
		var body any
		if op.RequestBody != nil {
			body = validBodies()[name]
			for form := range op.RequestBody.Content {
				b.sendWithType(method, path+"?nosuch=1", form, validBodies()[name]).ExpectProblem(400, "unknown_field", "nosuch")
			}
		}
		b.Call(method, path+"?nosuch=1", adminToken, body).ExpectProblem(400, "unknown_field", "nosuch")
		for form := range op.Responses["200"].Content { // a list in each form, including the streams
			if method == http.MethodGet {
				b.getWithAccept(path+"?nosuch=1", form).ExpectProblem(400, "unknown_field")
			}
		}
	}
}

// TestMistypedQueryChangesNothing checks mistyped queries that an earlier version did not refuse: they changed
// something, or listed everything.
func TestMistypedQueryChangesNothing(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.PutPool("p", `{"capacity":60}`)
	b.CreateBatch(newBatchBody)
	for path, want := range map[string]struct {
		status int
		code   string
		names  string
	}{
		"/v1/tasks/cancel?batch=1&dryrun=true":                {400, "unknown_field", "dryrun"},
		"/v1/tasks/cancel?batch=1&dry_run":                    {422, "invalid_field", "dry_run"},
		"/v1/tasks/cancel?batch=1&dry_run=":                   {422, "invalid_field", "dry_run"},
		"/v1/tasks/cancel?batch=1&state=pending;dry_run=true": {400, "invalid_request", "query"},
		"/v1/tasks/cancel?batch=1&batch=2":                    {422, "invalid_field", "batch"},
		"/v1/tasks/cancel?batch=1&dry_run=false&dry_run=true": {422, "invalid_field", "dry_run"},
		"/v1/batches?dryrun=true":                             {400, "unknown_field", "dryrun"},
		"/v1/batches?dry_run":                                 {422, "invalid_field", "dry_run"},
		"/v1/batches?pool=q":                                  {400, "unknown_field", "pool"}, // a field of a streamed batch
		"/v1/devices?existing=skip":                           {400, "unknown_field", "existing"},
	} {
		var body any
		if !strings.Contains(path, "cancel") {
			body = newBatchBody
		}
		b.Call("POST", path, adminToken, body).ExpectProblem(want.status, want.code, want.names)
	}
	streamed := "device\nd-1\n"
	b.sendWithType(http.MethodPost, "/v1/batches?pool=p&dry_run", csvType, streamed).ExpectProblem(422, "invalid_field", "dry_run")
	b.sendWithType(http.MethodPost, "/v1/batches?pool=p&pool=q", csvType, streamed).ExpectProblem(422, "invalid_field", "pool")
	b.Get("/v1/tasks?stat=failed").ExpectProblem(400, "unknown_field", "stat")
	b.Get("/v1/tasks?state=failed&state=expired").ExpectProblem(422, "invalid_field", "state")
	b.Get("/v1/devices?tag=a:1&tag=b:2").Expect(200)
	if got := fmt.Sprint(b.readPages("/v1/tasks?state=pending", "tasks", "id")); got != "[1 2]" {
		t.Errorf("pending are %s, want both tasks of the one batch", got)
	}
}
