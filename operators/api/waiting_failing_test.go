package api_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/operators"
)

// TestFailingAttemptsAreShown checks a pool whose devices fail, with tasks that are tried again. The summaries of the waiting tasks of the
// pool and of the batch show the failed attempts with their errors, and do not advise to raise the capacity. The minutes of the history of the pool count the failures.
func TestFailingAttemptsAreShown(t *testing.T) {
	t.Parallel()
	runOnBothBackends(t, func(b *testAPI) {
		b.PutPool("p", `{"capacity":1}`)
		id := b.CreateBatch(`{"pool":"p","max_attempts":9,"retry_backoff_ms":3600000,"devices":["d-0","d-1","d-2","d-3","d-4","d-5","d-6","d-7"]}`)
		report := func(device, status, text string) {
			b.Helper()
			b.SendReport(device, b.ReportUntilGranted(device).Result(status, fmt.Sprintf(`,"error":%q`, text))).Expect(200)
		}
		read := func(path string) *operators.RecentAttempts {
			b.Helper()
			var shown struct {
				Recent *operators.RecentAttempts `json:"recent_attempts"`
			}
			b.Get(path).Expect(200).Decode(&shown)
			return shown.Recent
		}
		report("d-0", "succeeded", "")
		for _, device := range []string{"d-1", "d-2", "d-3"} {
			report(device, "failed", "connection refused")
		}
		report("d-4", "rejected", "no such server")
		paths := []string{"/v1/pools/p/waiting", fmt.Sprint("/v1/batches/", id, "/waiting")}
		for _, path := range paths {
			if r := read(path); r == nil || r.Ended != 5 || r.Failed != 4 || r.ManyAttemptsFailed || r.Text() != "" {
				b.Errorf("%s: %+v, want four of five failed, which are not many", path, r)
			}
		}
		report("d-5", "failed", "connection refused")
		for _, path := range paths {
			if r := read(path); !r.ManyAttemptsFailed || r.Text() != "83 % of 6 attempts failed within the last 5 min: connection refused (4), no such server (1)" {
				b.Errorf("%s: %+v: %s", path, r, r.Text())
			}
		}
		b.ReportUntilGranted("d-6") // holds the slot
		b.SendReport("d-7", `{"id":"1"}`).Expect(200)
		var retrying operators.TaskList
		b.Get("/v1/tasks?retrying=true").Expect(200).Decode(&retrying)
		for _, task := range retrying.Tasks {
			if !task.WillBeTriedAgain() || task.LastErrorText() != "connection refused" {
				b.Errorf("%+v", task)
			}
		}
		if len(retrying.Tasks) != 4 {
			b.Errorf("%d tasks will be tried again, want those whose attempts failed", len(retrying.Tasks))
		}
		mark, err := b.store.ReadEventPosition(b.Context(), -1)
		if err == nil {
			_, err = b.store.CountMinutes(b.Context(), mark.Last, 1000)
		}
		b.Must(err)
		for path, parts := range map[string][]string{
			"/v1/pools/p/waiting":                        {`"code":"pool_full"`, "find out why attempts fail"},
			"/v1/tasks/8/why":                            {`"code":"pool_full"`, "find out why attempts fail"},
			"/v1/batches/1/waiting/tasks?code=pool_full": {`"id":8`, "find out why attempts fail", `"last_seen":"20`},
			"/v1/tasks?retrying=true&batch=1":            {`"last_error":"connection refused"`, `"retry_at":"20`},
			"/v1/pools/p/series?range=1h":                {`"failed":5`},
			"/v1/pools":                                  {`"trouble":["failing"]`},
			"/v1/events?kind=task.failed":                {`"detail":"pending: connection refused"`},
		} {
			text := string(b.Get(path).Expect(200).Body)
			for _, part := range parts {
				if !strings.Contains(text, part) {
					b.Errorf("%s: no %s in %s", path, part, text)
				}
			}
			if strings.Contains(text, "raise the capacity") {
				b.Errorf("%s: advises to raise the capacity: %s", path, text)
			}
		}
	})
}
