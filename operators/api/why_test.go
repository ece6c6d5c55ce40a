package api_test

import (
	"fmt"
	"strings"
	"testing"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
)

func TestWhyAnswersWithReasons(t *testing.T) {
	t.Parallel()
	runOnServers(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":1}`)
		b.CreateBatch(newBatchBody)
		b.SendReport("d-1", `{"accept":false}`).Expect(200)
		why := func(want string) rig.Response {
			a := b.Call("GET", "/v1/tasks/1/why", b.createToken("viewer"), nil).Expect(200)
			if !strings.HasPrefix(string(a.Body), want) {
				b.Errorf("answered %s, want %s...", a.Body, want)
			}
			return a
		}
		if a := why(`{"state":"pending","reasons":[{"code":"next_report","detail":"nothing delays the task`); !strings.Contains(string(a.Body), `"actions":[]`) {
			b.Errorf("nothing to do: %s", a.Body)
		}
		b.Call("POST", "/v1/batches/1/pause", adminToken, `{"reason":"it \"smokes\""}`).Expect(200)
		b.Call("POST", "/v1/pools/p/pause", adminToken, `{"reason":"so does that"}`).Expect(200)
		shown := why(`{"state":"pending","reasons":[{"code":"pool_paused","detail":"pool p is paused by bootstrap since 20`).Object()
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
		b.Call("POST", "/v1/batches/1/resume", adminToken, nil).Expect(200)
		b.Call("POST", "/v1/pools/p/resume", adminToken, nil).Expect(200)
		g := b.ReportUntilGranted("d-1")
		why(`{"state":"dispatched","reasons":[{"code":"running"`)
		b.SendReport("d-1", g.Result("succeeded", "")).Expect(200)
		why(`{"state":"succeeded","reasons":[{"code":"succeeded"`)

		b.Get("/v1/tasks/4711/why").ExpectProblem(404, "not_found")
		b.Get("/v1/tasks/x/why").ExpectProblem(422, "invalid_field")
		b.Call("GET", "/v1/tasks/1/why", b.createToken("verifier"), nil).ExpectProblem(403, "forbidden")
	})
}
