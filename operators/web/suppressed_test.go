package web_test

import "testing"

// TestSuppressedTasksAreShown checks the pages for suppressed tasks. These tasks are in the bar, the counts and the results of their batch, in
// the list of tasks and on their own page, with the reason and a button to try again.
func TestSuppressedTasksAreShown(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3)
	b.Do("POST", "/v1/batches", map[string]any{"pool": "p", "devices": []string{"d-1", "d-1"}, "limits": []any{
		map[string]any{"name": "once", "per": "device", "algorithm": "fixed", "per_ms": 3_600_000, "max": 1, "on_limited": "drop"},
	}}, nil)
	g := b.ReportUntilGranted("d-1")
	b.sendReport("d-1", map[string]any{"id": "r", "results": []any{map[string]any{"task": g.ID, "token": g.Token, "status": "succeeded"}}})
	const reason = "policy once of batch 1 allows 1 per 1h0m0s for device=d-1"
	for path, words := range map[string][]string{
		"/batches":                {`f-suppressed`},
		"/batches/1":              {`f-suppressed`, `state=suppressed`, `drops refused tasks`, reason},
		"/tasks?state=suppressed": {`<span class="state suppressed">suppressed</span>`, reason},
		"/tasks/2":                {`suppressed`, reason, `action="/tasks/2/retry"`},
	} {
		_, text, _ := b.getPage(path)
		expectContains(t, text, words...)
	}
}
