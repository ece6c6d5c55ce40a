package web_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// activityKindsJS evaluates to the kinds of the events that the page lists, newest first.
const activityKindsJS = `[...document.querySelectorAll("#activity tbody tr td:nth-child(2)")].map((cell) => cell.textContent).join(" ")`

// openInZone opens a page in a browser whose time zone is 5.5 hours ahead of UTC.
func (b *tab) openInZone(address string) {
	b.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Kolkata"})
	b.Must(err)
	b.open(address)
}

// TestActivityBeginsWithTheActsOfOperators checks the page of the events: it begins with what operators did, shows a changed value with the old
// one, a batch by its name and an import as one row. A reader can select the events of everybody, and filter by kind, by actor and by time.
func TestActivityBeginsWithTheActsOfOperators(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3)
	b.Do("POST", "/v1/batches", map[string]any{"pool": "p", "name": "nightly", "devices": []string{"d-1"}}, nil)
	b.ReportUntilGranted("d-1")
	b.Do("PATCH", "/v1/pools/p", map[string]any{"capacity": 5}, nil)
	b.importDevices(30)
	tab := openTab(t)
	tab.openInZone(b.URL + "/activity")
	if kinds := evalJS[string](tab, activityKindsJS); kinds != "devices.imported pool.changed batch.created pool.created access.signed_in" {
		t.Errorf("the page begins with %q", kinds)
	}
	expectContains(t, tab.elementText("#activity"), "capacity=3 -> 5", "created=30 existing=0", "operator bootstrap")
	if link := evalJS[string](tab, `document.querySelector('#activity a[href="/batches/1"]').textContent`); link != "nightly" {
		t.Errorf("the batch is shown as %q", link)
	}
	tab.checkScreen("activity-acts")
	tab.click(`.pills a[href$="actor_kind=everybody"]`)
	tab.waitForJS(activityKindsJS + `.includes("task.granted") && /Since .Asia.*Until .Asia/s.test(document.querySelector(".filters").textContent)`)
	evalJS[bool](tab, `(() => { document.querySelector("[name=actor_kind]").value = "operator"; document.querySelector("[name=kind]").value = "pool.changed"; document.querySelector("[name=actor]").value = "bootstrap"; return true; })()`)
	evalJS[bool](tab, `(() => { document.querySelector("[name=since]").value = "2020-03-01T04:05"; document.querySelector(".filters").requestSubmit(); return true; })()`)
	tab.waitForJS(`new URLSearchParams(location.search).get("since") === "2020-02-29T22:35" && document.querySelector("[name=since]").value === "2020-03-01T04:05" && ` + activityKindsJS + ` === "pool.changed"`)
	for query, want := range map[string]int{"kind=pool.changed&actor=bootstrap": 1, "actor_kind=operator&until=2020-01-01T00:00": 0, "actor_kind=device": 1, "actor_kind=everybody&kind=batch.created": 1} {
		_, text, _ := b.getPage("/activity?" + query)
		if n := strings.Count(text, `<tr id="event-`); n != want {
			t.Errorf("%s: %d events, want %d", query, n, want)
		}
	}
}

// importDevices imports n devices in one request.
func (b *testReplica) importDevices(n int) {
	b.Helper()
	lines := "device\n"
	for i := range n {
		lines += fmt.Sprintf("imported-%d\n", i)
	}
	request, err := http.NewRequestWithContext(b.Context(), http.MethodPost, b.URL+"/v1/devices", strings.NewReader(lines))
	b.Must(err)
	request.Header.Set("Authorization", "Bearer "+adminToken)
	request.Header.Set("Content-Type", "text/csv")
	response, err := http.DefaultClient.Do(request)
	b.Must(err)
	if err := response.Body.Close(); err != nil || response.StatusCode != http.StatusCreated {
		b.Fatalf("%s, %v", response.Status, err)
	}
}

// TestThePauseOfAllPoolsStopsTasksAndIsOneEntry checks the page that pauses all pools, with the choice to stop running devices: the device is
// asked to stop and its task waits again, the log has one entry, and each pool has the mark of the pause on its chart and the entry in its events.
func TestThePauseOfAllPoolsStopsTasksAndIsOneEntry(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 1, "d-1")
	b.createPool("q", 1)
	granted := b.ReportUntilGranted("d-1")
	tab := openTab(t)
	tab.open(b.URL + "/pause-all")
	expectContains(t, tab.elementText("main"), "2 pools are not paused; 1 slot is held")
	tab.checkScreen("pause-all-stop")
	tab.runActions(chromedp.SendKeys(chromedp.CSS("#reason"), "the server is down"))
	tab.click("[name=stop_running]")
	tab.click("button.primary")
	tab.waitForJS(`document.body.textContent.includes("asked to stop with their next report")`)
	reply := b.SendReport("d-1", map[string]any{"running": []any{map[string]any{"task": granted.ID, "token": granted.Token}}})
	expectContains(t, string(reply.Body), `"why":"paused"`)
	b.sendReport("d-1", map[string]any{"results": []any{map[string]any{"task": granted.ID, "token": granted.Token, "status": "failed", "error": "paused"}}})
	_, text, _ := b.getPage(fmt.Sprintf("/tasks/%d", granted.ID))
	expectContains(t, text, "pool p is paused", "task.returned")
	for _, pool := range []string{"p", "q"} {
		tab.open(b.URL + "/activity?kind=pools.paused&pool=" + pool)
		expectContains(t, tab.elementText("#activity"), "p q", "stopping=1 because: the server is down")
		tab.open(b.URL + "/pools/" + pool + "?range=24h")
		tab.waitForJS(`[...document.querySelectorAll("#chart line.act")].some((line) => line.textContent.startsWith("bootstrap: pools.paused"))`)
		expectContains(t, tab.elementText("#chart .acts"), "pools.paused", "because: the server is down")
	}
	tab.checkScreen("pool-acts")
	_, text, _ = b.getPage("/pause-all")
	expectContains(t, text, "0 pools are not paused", "You paused 2 pools")
	if status, text, _ := b.postForm("/resume-mine", url.Values{}, nil); status != http.StatusSeeOther {
		t.Errorf("%d %s", status, text)
	}
	tab.open(b.URL + "/activity")
	if kinds := evalJS[string](tab, activityKindsJS); !strings.HasPrefix(kinds, "pools.resumed pools.paused pool.created") || strings.Count(kinds, "pools.") != 2 {
		t.Errorf("the acts are %q", kinds)
	}
	tab.checkScreen("activity-pauses")
}
