package api_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const dropPolicy = `[{"name":"one-each","per":"payload.to","algorithm":"duplicate","per_ms":3600000,"max":1,"on_limited":"drop","reveal":true}]`

// TestASuppressedTaskIsSeenEverywhere checks where a suppressed task is shown: in its batch, in lists, in results as JSON and CSV, in events, in
// `why` and in metrics. The task can be retried, alone and with others.
func TestASuppressedTaskIsSeenEverywhere(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":60}`)
		id := b.CreateBatch(`{"pool":"p","kind":"sms","limits":` + dropPolicy + `,"tasks":[
			{"device":"d-1","payload":{"to":"+49"}},{"device":"d-1","payload":{"to":"+49"}},{"device":"d-1","payload":{"to":"+1"}}]}`)
		if text := string(b.Get(fmt.Sprint("/v1/batches/", id)).Expect(200).Body); !strings.Contains(text, `"on_limited":"drop","reveal":true`) {
			b.Errorf("the policy is not shown: %s", text)
		}
		b.endTask("d-1", "succeeded", "")
		b.endTask("d-1", "succeeded", "")
		state, counts := b.batchCounts(id)
		if state != "finished" || counts["suppressed"] != 1.0 || counts["succeeded"] != 2.0 {
			b.Errorf("%s, %v", state, counts)
		}
		const reason = `policy one-each of batch 1 allows 1 equal ones per 1h0m0s for payload.to="+49"; `
		for path, want := range map[string]string{
			"/v1/tasks?state=suppressed":             `"id":2,`,
			"/v1/tasks?error=policy%20one-each*":     `"state":"suppressed"`,
			"/v1/tasks/2":                            strings.ReplaceAll(reason, `"`, `\"`),
			"/v1/tasks/2/why":                        `"code":"suppressed"`,
			"/v1/batches/1/results?state=suppressed": `"state":"suppressed"`,
			"/v1/events?kind=task.suppressed":        strings.ReplaceAll(reason, `"`, `\"`),
			"/v1/pools/p/limited":                    `"subject":"payload.to=\"+49\""`,
			"/metrics":                               `dispatcher_tasks_suppressed_total{policy="one-each",pool="p"} 1`,
		} {
			if text := string(b.Get(path).Expect(200).Body); !strings.Contains(text, want) {
				b.Errorf("%s: no %s in %s", path, want, text)
			}
		}
		rows := b.getWithAccept("/v1/batches/1/results", csvType).Expect(200).CSVRows()
		if len(rows) != 4 || !slices.ContainsFunc(rows, func(row []string) bool {
			return slices.Equal(row[:3], []string{"2", "d-1", "suppressed"}) && row[3] != "" && row[4] == "" && strings.HasPrefix(row[5], reason)
		}) {
			b.Errorf("as CSV: %q", rows)
		}
		if bulk := string(b.Call("POST", "/v1/tasks/retry?state=suppressed&dry_run=true", adminToken, nil).Expect(200).Body); !strings.Contains(bulk, `"tasks":1`) {
			b.Errorf("to be tried again: %s", bulk)
		}
		b.Call("PATCH", "/v1/batches/1", adminToken, `{"limits":null}`).Expect(200)
		b.Call("POST", "/v1/tasks/2/retry", adminToken, nil).Expect(200)
		if g := b.ReportUntilGranted("d-1"); g.ID != 2 {
			b.Errorf("granted %+v, want the task that is tried again", g)
		}
	})
}
