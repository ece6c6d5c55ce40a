package web_test

import (
	"strings"
	"testing"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// TestUseOfQuotasIsShown checks the page of a pool: it shows a bar and numbers for the subjects (for example,
// accounts) with the highest use of its policies. Without policies it shows nothing.
func TestUseOfQuotasIsShown(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("free", 3)
	b.Do("PUT", "/v1/pools/p", map[string]any{"capacity": 5, "limits": []any{
		map[string]any{"name": "quota", "per": "device", "algorithm": "fixed", "per_ms": 3_600_000, "max": 4},
		map[string]any{"name": "daily", "per": "pool", "algorithm": "calendar", "period": "day", "timezone": servers.NoonZone(), "max": 1000},
	}}, nil)
	_, text, _ := b.getPage("/pools/p")
	expectContains(t, text, "Nothing is counted now")
	_, text, _ = b.getPage("/pools/free")
	if strings.Contains(text, "Usage of the policies") {
		t.Error("a pool without policies shows what was used of them")
	}
	b.Do("POST", "/v1/batches", map[string]any{"pool": "p", "devices": []string{"d-1"}}, nil)
	b.ReportUntilGranted("d-1")
	b.Await("the use", func() bool {
		_, text, _ = b.getPage("/pools/p")
		return strings.Contains(text, `aria-label="25 % used"`)
	})
	expectContains(t, text, "Usage of the policies", `aria-label="Use of the policies"`, `<td>quota</td><td class="wide text">device=d-1</td>`, `<b>1</b></a> / 4`, "4 per 1h0m0s",
		`<td class="wide text">pool=p</td>`, "/ 1000", "dispatcher pools usage p")
}
