package web_test

import (
	"fmt"
	"slices"
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
	b.Do("POST", "/v1/batches", map[string]any{"pool": "p", "max_attempts": 9, "retry_backoff_ms": 3_600_000, "devices": deviceIDs(devices)}, nil)
	for _, page := range []string{"/pools/p", "/batches/1", "/"} {
		if _, text, _ := b.getPage(page); strings.Contains(text, "attempts failed") || strings.Contains(text, "many attempts fail") {
			t.Errorf("%s: attempts fail although nothing was tried: %s", page, text)
		}
	}
	for _, device := range deviceIDs(devices) {
		granted := b.ReportUntilGranted(device)
		b.sendReport(device, map[string]any{"accept": false, "results": []any{map[string]any{"task": granted.ID, "token": granted.Token, "status": "failed", "error": "connection refused"}}})
	}
	for page, filter := range map[string]string{"/pools/p": "pool=p", "/batches/1": "batch=1"} {
		link := "/activity?kind=task.failed&amp;" + filter
		b.Await("the failures on "+page, func() bool {
			_, text, _ := b.getPage(page)
			return strings.Contains(text, fmt.Sprintf("100 %% of %d attempts failed within the last 5 min: connection refused (%d).", devices, devices)) && strings.Contains(text, `href="`+link+`"`)
		})
		_, text, _ := b.getPage(strings.ReplaceAll(link, "&amp;", "&"))
		if n := strings.Count(text, "pending: connection refused"); n != devices {
			t.Errorf("%s: %d failed attempts with their error, want %d", link, n, devices)
		}
	}
	tab := openTab(t)
	tab.open(b.URL + "/tasks?batch=1&state=failed")
	tab.click(`#task-pills a[href*="retrying=true"]`)
	tab.waitForJS(fmt.Sprintf(`document.querySelectorAll("#task-list tbody tr").length === %d`, devices))
	if text := tab.elementText("#task-list tbody td:last-child"); !strings.HasPrefix(text, "connection refused next try: ") {
		t.Errorf("the task that will be tried again: %q", text)
	}
	tab.checkScreen("retrying")
	b.Await("the mark on the first page", func() bool {
		_, text, _ := b.getPage("/")
		return strings.Contains(text, ">many attempts fail</a>")
	})
	b.Await("the bars of the chart", func() bool {
		_, text, _ := b.getPage("/pools/p?range=24h")
		return strings.Contains(text, fmt.Sprintf("%d failed in 10 min", devices))
	})
	b.pauseAndResumeWithTwoSlots(tab)
}

// pauseAndResumeWithTwoSlots does in a browser what an operator does if the system behind pool p is down: it follows the mark on the
// first page, pauses the pool, and later resumes it with two slots. Each step takes at most three clicks.
func (b *testReplica) pauseAndResumeWithTwoSlots(tab *tab) {
	b.Helper()
	expectPool := func(capacity int, paused bool) {
		b.Helper()
		var pool operators.Pool
		b.Do("GET", "/v1/pools/p", nil, &pool)
		if pool.Capacity != capacity || pool.Paused != paused {
			b.Errorf("capacity %d, paused %t; want %d, %t", pool.Capacity, pool.Paused, capacity, paused)
		}
	}
	tab.open(b.URL + "/")
	tab.click("#pool-p a.tag.bad")
	tab.waitForJS(`document.querySelector("#pool-head .problem") !== null`)
	tab.click(`a[href="/pools/p/pause"]`)
	tab.waitForJS(`document.querySelector("#reason") !== null`)
	tab.setInput("#reason", "the server is down")
	tab.click("form.fields button.primary")
	tab.waitForJS(`document.querySelector("#pool-head .note") !== null`)
	expectContains(b.T, tab.elementText("#pool-head .note"), "Paused by bootstrap", "the server is down")
	expectPool(6, true)
	tab.checkScreen("failing-paused")
	tab.click(`a[href="/pools/p/edit"]`)
	tab.waitForJS(`document.querySelector("#capacity") !== null`)
	tab.setInput("#capacity", "2")
	tab.click("form.fields button.primary")
	tab.waitForJS(`document.querySelector('form[action="/pools/p/resume"] button') !== null`)
	tab.click(`form[action="/pools/p/resume"] button`)
	tab.waitForJS(`document.querySelector('a[href="/pools/p/pause"]') !== null`)
	expectPool(2, false)
}

// TestFailuresAreFoundByModelAndFirmware checks a pool in which the devices of model M3 with firmware 7.2 fail for 85 %, and the other devices
// seldom. From the page of the pool, three clicks lead to this group.
func TestFailuresAreFoundByModelAndFirmware(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	const tries = 20
	b.createPool("p", 6)
	failed := map[string]int{}
	for i, model := range []string{"M2", "M3"} {
		for n, firmware := range []string{"7.1", "7.2"} {
			device := fmt.Sprintf("d-%d%d", i, n)
			b.Do("POST", "/v1/devices", map[string]any{"id": device, "tags": map[string]string{"model": model, "serial": device}}, nil)
			b.Do("POST", "/v1/batches", map[string]any{"pool": "p", "max_attempts": 1, "devices": slices.Repeat([]string{device}, tries)}, nil)
			failed[device] = 1
			if model == "M3" && firmware == "7.2" {
				failed[device] = 17
			}
			b.sendReport(device, map[string]any{"accept": false, "attributes": map[string]any{"sys": map[string]any{"firmware": firmware}, "uptime": 3}})
			for at := range tries {
				granted, result := b.ReportUntilGranted(device), "succeeded"
				if at < failed[device] {
					result = "failed"
				}
				b.sendReport(device, map[string]any{"accept": false, "results": []any{map[string]any{"task": granted.ID, "token": granted.Token, "status": result, "error": "no answer"}}})
			}
		}
	}
	tab := openTab(t)
	tab.open(b.URL + "/pools/p")
	tab.waitForJS(`document.querySelector('.problem a[href$="/failures"]') !== null`)
	tab.click(`.problem a[href$="/failures"]`)
	tab.waitForJS(`document.querySelector("main h1").textContent === "Failures in p"`)
	tab.click(`a[href*="by=tags.model"]`)
	tab.waitForJS(`document.querySelectorAll("#groups tbody tr").length === 2`)
	tab.click(`a[href*="attributes.sys.firmware"]`)
	tab.waitForJS(`document.querySelectorAll("#groups tbody tr").length === 4`)
	if first := evalJS[string](tab, `[...document.querySelectorAll("#groups tbody tr:first-child td")].map((cell) => cell.textContent).join(", ")`); first != "M3, 7.2, 85 %, 17, 20" {
		t.Errorf("the first group is %s", first)
	}
	tab.checkScreen("failures")
}

// TestTheChartComparesWithTheDayBefore checks the charts of a pool that failed less one day before: they show its counts of that day as
// lines, and the numbers of failed attempts of both days.
func TestTheChartComparesWithTheDayBefore(t *testing.T) {
	t.Parallel()
	b := startOnServers(t)
	b.createPool("p", 3, deviceIDs(3)...)
	b.alterLedger(`UPDATE pools SET created_at = now() - interval '3 days'`)
	b.alterLedger(`INSERT INTO pool_minutes (pool, minute, granted, ended, lapsed, failed, capacity)
		SELECT 'p', extract(epoch FROM now())::bigint / 60 - 1440 - n, 5, 5, 0, 1, 3 FROM generate_series(10, 19) n`)
	for _, device := range deviceIDs(3) {
		granted := b.ReportUntilGranted(device)
		b.sendReport(device, map[string]any{"accept": false, "results": []any{map[string]any{"task": granted.ID, "token": granted.Token, "status": "failed"}}})
	}
	tab := openTab(t)
	tab.open(b.URL + "/pools/p?range=24h")
	tab.waitForJS(`document.querySelectorAll("#chart path.before").length === 2`)
	if text := strings.Join(strings.Fields(tab.elementText("#chart figcaption")), " "); !strings.Contains(text, "one day before. Failed: 3 of 3 granted; one day before 10 of 50.") {
		t.Errorf("the caption: %s", text)
	}
	tab.checkScreen("day-before")
}
