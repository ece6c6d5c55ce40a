package web_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestTheFirstPageTellsAllTrouble checks the cards of pools whose tasks do not start, each for another reason. The cards with the worst
// trouble come first, and each has the first sentence of why.
func TestTheFirstPageTellsAllTrouble(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("a-fine", 2)
	b.createPool("b-silent", 2, "s-1", "s-2", "s-3")
	once := []any{map[string]any{"name": "once", "per": "pool", "algorithm": "fixed", "max": 1, "per_ms": 3_600_000}}
	b.Do("PUT", "/v1/pools/c-limit", map[string]any{"capacity": 2, "limits": once}, nil)
	b.Do("POST", "/v1/batches", map[string]any{"pool": "c-limit", "devices": []string{"l-1", "l-2"}}, nil)
	b.ReportUntilGranted("l-1")
	b.sendReport("l-2", map[string]any{"id": "x"})
	b.Do("PUT", "/v1/pools/d-shut", map[string]any{"capacity": 2, "windows": closedWindows()}, nil)
	b.Do("POST", "/v1/batches", map[string]any{"pool": "d-shut", "devices": []string{"w-1"}}, nil)
	b.createPool("e-zero", 0, "z-1")
	b.Do("PUT", "/v1/pools/f-failing", map[string]any{"capacity": 6}, nil)
	b.Do("POST", "/v1/batches", map[string]any{"pool": "f-failing", "max_attempts": 9, "retry_backoff_ms": 3_600_000, "devices": deviceIDs(6)}, nil)
	// More tasks wait in the pool g-later than in other pools, but they will start without help. So its card comes after the cards of pools that
	// need help.
	b.createPool("g-later", 9)
	b.Do("POST", "/v1/batches", map[string]any{"pool": "g-later", "not_before": "2099-01-01T00:00:00Z", "devices": []string{"g-1", "g-2", "g-3", "g-4", "g-5", "g-6", "g-7", "g-8"}}, nil)
	for i := range 8 {
		b.sendReport(fmt.Sprintf("g-%d", i+1), map[string]any{"id": "x"})
	}
	for _, device := range deviceIDs(6) {
		granted := b.ReportUntilGranted(device)
		b.sendReport(device, map[string]any{"accept": false, "results": []any{map[string]any{"task": granted.ID, "token": granted.Token, "status": "failed", "error": "connection refused"}}})
	}
	var list struct{ Pools []struct{ Trouble []string } }
	b.Await("the failures", func() bool {
		b.Do("GET", "/v1/pools?sort=trouble&page_size=1", nil, &list)
		return fmt.Sprint(list.Pools[0].Trouble) == "[failing]"
	})
	tab := openTab(t)
	tab.open(b.URL + "/")
	tab.waitForJS(`[...document.querySelectorAll(".card")].map((c) => c.id).join() === "pool-f-failing,pool-e-zero,pool-d-shut,pool-b-silent,pool-c-limit,pool-g-later,pool-a-fine"`)
	for pool, want := range map[string][]string{
		"a-fine": {"0 / 2 held", "tasks wait0", "devices in line0"}, "b-silent": {"device not registered", "3 of 3 tasks: ", "s-1", "tasks wait3"}, "c-limit": {"limited (1 per 1h by once)", "1 of 1 task: policy once"},
		"d-shut": {"closed while tasks wait", "1 of 1 task: "}, "e-zero": {"no slots", "1 of 1 task: "}, "f-failing": {"many attempts fail", "100 % of 6 attempts failed within the last 5 min: connection refused (6)"},
	} {
		expectContains(t, strings.Join(strings.Fields(tab.elementText("#pool-"+pool)), " "), want...)
	}
	if evalJS[bool](tab, `document.querySelector("#pool-a-fine .why, #pool-a-fine .tag") !== null`) {
		t.Error("a pool in which nothing waits has a reason")
	}
	tab.checkScreen("pools-trouble")
	tab.open(b.URL + "/?sort=trouble")
	tab.waitForJS(`document.querySelector("tbody tr").id === "pool-f-failing" && document.querySelector("#pool-c-limit .why").textContent.includes("policy once")`)
	tab.checkScreen("pool-rows-trouble")
	if status, _, _ := b.getPage("/pools/c-limit/waiting"); status != http.StatusOK {
		t.Errorf("the page of the reasons: %d", status)
	}
}
