package api_test

import (
	"fmt"
	"strings"
	"testing"
)

func TestWhyAnswersWithReasons(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.putPool("p", `{"capacity":1}`)
		b.createBatch(newBatchBody)
		b.sendReport("d-1", `{"accept":false}`).expectStatus(200)
		why := func(want string) apiResponse {
			a := b.call("GET", "/v1/tasks/1/why", b.createToken("viewer"), nil).expectStatus(200)
			if !strings.HasPrefix(string(a.body), want) {
				b.Errorf("answered %s, want %s...", a.body, want)
			}
			return a
		}
		if a := why(`{"state":"pending","reasons":[{"code":"next_report","detail":"nothing delays the task`); !strings.Contains(string(a.body), `"actions":[]`) {
			b.Errorf("nothing to do: %s", a.body)
		}
		b.call("POST", "/v1/batches/1/pause", adminToken, `{"reason":"it \"smokes\""}`).expectStatus(200)
		b.call("POST", "/v1/pools/p/pause", adminToken, `{"reason":"so does that"}`).expectStatus(200)
		shown := why(`{"state":"pending","reasons":[{"code":"pool_paused","detail":"pool p is paused by bootstrap since 20`).decodeObject()
		reasons, _ := shown["reasons"].([]any)
		if len(reasons) != 2 || len(shown) != 2 {
			b.Fatalf("answered %v", shown)
		}
		second, _ := reasons[1].(map[string]any)
		for _, field := range []string{"until", "position", "estimated_start"} {
			if value, there := second[field]; !there || value != nil {
				b.Errorf("%s: %v, %t; want null", field, value, there)
			}
		}
		if second["code"] != "batch_paused" || second["remedy"] != "resume the batch: dispatcher batches resume 1" ||
			!strings.HasSuffix(fmt.Sprint(second["detail"]), `because: it "smokes"`) {
			b.Errorf("the second %v", second)
		}
		if got := fmt.Sprint(second["actions"]); got != "[map[action:resume command:dispatcher batches resume 1 id:1 subject:batch]]" {
			b.Errorf("the actions of the second: %s", got)
		}
		b.call("POST", "/v1/batches/1/resume", adminToken, nil).expectStatus(200)
		b.call("POST", "/v1/pools/p/resume", adminToken, nil).expectStatus(200)
		g := b.reportUntilGranted("d-1")
		why(`{"state":"dispatched","reasons":[{"code":"running"`)
		b.sendReport("d-1", g.resultBody("succeeded", "")).expectStatus(200)
		why(`{"state":"succeeded","reasons":[{"code":"succeeded"`)

		b.get("/v1/tasks/4711/why").expectProblem(404, "not_found")
		b.get("/v1/tasks/x/why").expectProblem(422, "invalid_field")
		b.call("GET", "/v1/tasks/1/why", b.createToken("verifier"), nil).expectProblem(403, "forbidden")
	})
}
