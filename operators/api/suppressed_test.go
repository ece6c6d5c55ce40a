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
		b.putPool("p", `{"capacity":60}`)
		id := b.createBatch(`{"pool":"p","kind":"sms","limits":` + dropPolicy + `,"tasks":[
			{"device":"d-1","payload":{"to":"+49"}},{"device":"d-1","payload":{"to":"+49"}},{"device":"d-1","payload":{"to":"+1"}}]}`)
		if text := string(b.get(fmt.Sprint("/v1/batches/", id)).expectStatus(200).body); !strings.Contains(text, `"on_limited":"drop","reveal":true`) {
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
			if text := string(b.get(path).expectStatus(200).body); !strings.Contains(text, want) {
				b.Errorf("%s: no %s in %s", path, want, text)
			}
		}
		rows := b.getWithAccept("/v1/batches/1/results", csvType).expectStatus(200).csvRows()
		if len(rows) != 4 || !slices.ContainsFunc(rows, func(row []string) bool {
			return slices.Equal(row[:3], []string{"2", "d-1", "suppressed"}) && row[3] != "" && row[4] == "" && strings.HasPrefix(row[5], reason)
		}) {
			b.Errorf("as CSV: %q", rows)
		}
		if bulk := string(b.call("POST", "/v1/tasks/retry?state=suppressed&dry_run=true", adminToken, nil).expectStatus(200).body); !strings.Contains(bulk, `"tasks":1`) {
			b.Errorf("to be tried again: %s", bulk)
		}
		b.call("PATCH", "/v1/batches/1", adminToken, `{"limits":null}`).expectStatus(200)
		b.call("POST", "/v1/tasks/2/retry", adminToken, nil).expectStatus(200)
		if g := b.reportUntilGranted("d-1"); g.ID != 2 {
			b.Errorf("granted %+v, want the task that is tried again", g)
		}
	})
}
