package web_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/operators"
)

// TestPagesShowFailingAttempts checks a pool whose attempts fail and are tried again. The pages of the pool and of the batch name the most
// frequent error, their link leads to the failed attempts with the error of each, and the first page marks the pool.
func TestPagesShowFailingAttempts(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	const devices = 6
	b.createPool("p", devices)
	b.callAPI("POST", "/v1/batches", map[string]any{"pool": "p", "max_attempts": 9, "retry_backoff_ms": 3_600_000, "devices": deviceIDs(devices)}, nil)
	for _, page := range []string{"/pools/p", "/batches/1", "/"} {
		if _, text, _ := b.getPage(page); strings.Contains(text, "attempts failed") || strings.Contains(text, "many attempts fail") {
			t.Errorf("%s: attempts fail although nothing was tried: %s", page, text)
		}
	}
	for _, device := range deviceIDs(devices) {
		granted := b.reportUntilGranted(device)
		b.sendReport(device, map[string]any{"accept": false, "results": []any{map[string]any{"task": granted.ID, "token": granted.Token, "status": "failed", "error": "connection refused"}}})
	}
	for page, filter := range map[string]string{"/pools/p": "pool=p", "/batches/1": "batch=1"} {
		link := "/activity?kind=task.failed&amp;" + filter
		b.waitUntil("the failures on "+page, func() bool {
			_, text, _ := b.getPage(page)
			return strings.Contains(text, fmt.Sprintf("100 %% of %d attempts failed within the last 5 min: connection refused (%d).", devices, devices)) && strings.Contains(text, `href="`+link+`"`)
		})
		_, text, _ := b.getPage(strings.ReplaceAll(link, "&amp;", "&"))
		if n := strings.Count(text, "pending: connection refused"); n != devices {
			t.Errorf("%s: %d failed attempts with their error, want %d", link, n, devices)
		}
	}
	b.waitUntil("the mark on the first page", func() bool {
		_, text, _ := b.getPage("/")
		return strings.Contains(text, ">many attempts fail</a>")
	})
	b.waitUntil("the bars of the chart", func() bool {
		_, text, _ := b.getPage("/pools/p?range=24h")
		return strings.Contains(text, fmt.Sprintf("%d failed in 10 min", devices))
	})
}

// TestAllPoolsArePausedOnOnePage checks that an admin pauses all pools on one page, and resumes the pools that this admin paused.
func TestAllPoolsArePausedOnOnePage(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 1)
	b.createPool("q", 1)
	isPaused := func() (paused int) {
		var list operators.PoolList
		b.callAPI("GET", "/v1/pools", nil, &list)
		for _, pool := range list.Pools {
			if pool.Paused {
				paused++
			}
		}
		return paused
	}
	_, text, _ := b.getPage("/pause-all")
	expectContains(t, text, "2 pools are not paused", "You paused 0 pools")
	if status, text, _ := b.postForm("/pause-all", url.Values{"reason": {"the server is down"}}, nil); status != http.StatusSeeOther {
		t.Errorf("%d %s", status, text)
	}
	if n := isPaused(); n != 2 {
		t.Errorf("%d pools paused, want 2", n)
	}
	_, text, _ = b.getPage("/pause-all")
	expectContains(t, text, "0 pools are not paused", "You paused 2 pools")
	if status, text, _ := b.postForm("/resume-mine", nil, nil); status != http.StatusSeeOther {
		t.Errorf("%d %s", status, text)
	}
	if n := isPaused(); n != 0 {
		t.Errorf("%d pools paused after the resumption", n)
	}
}
