package web_test

import (
	"context"
	_ "embed"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
)

// createAllScreens creates a busy fleet. It returns the paths of its pages, by the names of their pictures.
func createAllScreens(b *testReplica) map[string]string {
	b.Helper()
	names := deviceIDs(75)
	b.createPool("ar:330100", 60, names...)
	b.Do("PUT", "/v1/profiles/solar", map[string]any{"limits": []map[string]any{{"name": "sparing", "per": "device", "algorithm": "calendar", "period": "day", "max": 10}}}, nil)
	b.createUsedLimitSet("1", "2", "3")
	b.Do("POST", "/v1/batches", map[string]any{"name": "firmware " + strings.Repeat("very long ", 15), "pool": "ar:330100", "kind": "update", "devices": names}, nil)
	var granted rig.Grant
	for i := range 62 { // the first two tasks have ended, sixty run
		granted = b.ReportUntilGranted(names[i])
		if i < 2 {
			b.sendReport(names[i], map[string]any{"accept": false, "attributes": map[string]any{"firmware": "7.2"}, "results": []map[string]any{{
				"task": granted.ID, "token": granted.Token, "status": []string{"succeeded", "rejected"}[i], "error": "no route to host 203.0.113.7 after three tries", "output": map[string]any{"down_mbps": 94.1},
			}}})
		}
	}
	b.createPool("held-up", 3, names[70:]...)
	b.Do("POST", "/v1/pools/held-up/pause", map[string]any{"reason": "the server answers slowly"}, nil)
	b.Do("POST", "/v1/batches/3/pause", map[string]any{"reason": "until that is clear"}, nil)
	b.sendReport(names[70], map[string]any{"accept": false})
	b.Do("POST", "/v1/devices/"+names[70]+"/block", nil, nil)
	b.Do("PUT", "/v1/pools/ar:330200-quotas", map[string]any{"capacity": 4, "limits": []any{
		map[string]any{"name": "per-account", "per": "tags.account", "algorithm": "sliding", "windows": []any{map[string]any{"max": 2, "per_ms": 60_000}, map[string]any{"max": 9, "per_ms": 3_600_000}}},
		map[string]any{"name": "daily", "per": "pool", "algorithm": "calendar", "period": "day", "timezone": "Asia/Shanghai", "max": 1000},
	}}, nil)
	b.Do("POST", "/v1/batches", map[string]any{"name": "messages of the week", "pool": "ar:330200-quotas", "devices": []string{"q-1", "q-2", "q-3"}}, nil)
	b.ReportUntilGranted("q-1")
	b.ReportUntilGranted("q-2")
	b.createSuppressedBatch("ar:330300-shared", "s-1", "s-2", "s-3")
	b.Do("POST", "/v1/pools/ar:330300-shared/leases", map[string]any{"holder": "nightly-build-4711"}, nil)
	return map[string]string{
		"pool-quotas": "/pools/ar:330200-quotas", "pool-callers": "/pools/ar:330300-shared", "batch-suppressed": "/batches/5", "task-remedies": "/tasks/151", "pool-remedies": "/pools/held-up", "waiting-remedies": "/pools/held-up/waiting",
		"pools": "/", "pool": "/pools/ar:330100", "pool-edit": "/pools/ar:330100/edit", "pool-day": "/pools/ar:330100?range=24h", "slot-history": "/pools/ar:330100/slots/1", "batches": "/batches", "batch": "/batches/1", "batch-cancel": "/batches/1/cancel",
		"batch-edit": "/batches/1/edit", "batch-clone": "/new-batch?from=1", "batch-field": "/batches/1?field=down_mbps&tag=site",
		"batch-new": "/new-batch?pool=ar:330100", "tasks": "/tasks", "tasks-failed": "/tasks?state=failed&batch=1", "task": "/tasks/2", "task-running": fmt.Sprintf("/tasks/%d", granted.ID),
		"task-waiting": "/tasks/75", "bulk": "/cancel-tasks?batch=1", "devices": "/devices", "device": "/devices/d-1", "activity": "/activity", "system": "/system", "silent": "/devices?show=silent",
		"limit-sets": "/limits", "limit-set": "/limits/sms", "profiles": "/profiles", "profile": "/profiles/solar", "pools-rows": "/?sort=trouble", "find": "/find?q=d-1",
		"waiting": "/pools/ar:330100/waiting", "failures": "/pools/ar:330100/failures?by=attributes.firmware", "waiting-batch": "/batches/1/waiting?code=device_busy",
	}
}

// createSuppressedBatch creates a batch with two tasks for each device, of which the second is suppressed. The
// first device has ended its first task, and the other devices run theirs.
func (b *testReplica) createSuppressedBatch(pool string, names ...string) {
	b.Helper()
	b.Do("PUT", "/v1/pools/"+pool, map[string]any{"capacity": 12}, nil)
	b.Do("POST", "/v1/batches", map[string]any{"name": "once an hour", "pool": pool, "devices": append(slices.Clone(names), names...), "limits": []any{
		map[string]any{"name": "hourly", "per": "device", "algorithm": "fixed", "per_ms": 3_600_000, "max": 1, "on_limited": "drop"},
	}}, nil)
	for i, name := range names {
		g := b.ReportUntilGranted(name)
		if i == 0 {
			b.sendReport(name, map[string]any{"results": []any{map[string]any{"task": g.ID, "token": g.Token, "status": "succeeded"}}})
		}
	}
}

// createUsedLimitSet creates a limit set. For each phone, two takes are counted.
func (b *testReplica) createUsedLimitSet(phones ...string) {
	b.Helper()
	b.Do("PUT", "/v1/limits/sms", map[string]any{"limits": []map[string]any{
		{"name": "per-phone", "per": "facts.phone", "algorithm": "sliding", "windows": []map[string]any{{"max": 3, "per_ms": 60_000}}},
		{"name": "per-user", "per": "facts.user", "algorithm": "calendar", "period": "day", "max": 20, "on_error": "open"},
	}}, nil)
	for _, phone := range phones {
		b.Do("POST", "/v1/limits/sms/take", map[string]any{"facts": map[string]any{"phone": phone, "user": "ann"}, "cost": 2}, nil)
	}
}

// axeScript is the program axe-core (MPL 2.0), which finds parts of a page that people with disabilities cannot
// use.
//
//go:embed testdata/axe.min.js
var axeScript string

// TestEveryScreen checks every page with content. The page must write nothing to the console, and must not be wider
// than the screen. A program that finds violations of WCAG 2.2 AA finds none, whether the page is light, dark, narrow,
// or in the colours of the system. The test also takes a picture of each page.
func TestEveryScreen(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	for name, path := range createAllScreens(b) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tab := openTab(t)
			tab.open(b.URL + path)
			tab.waitForJS(`document.querySelector("h1").textContent !== ""`)
			tab.checkScreen(name)
			evalJS[bool](tab, axeScript+"; true")
			for look, rules := range map[screenStyle]string{
				{"light", "light", 1440, 1000, ""}:       allRules,
				{"dark", "dark", 1440, 1000, ""}:         colourRules,
				{"forced", "dark", 1440, 1000, "active"}: colourRules,
				{"narrow", "light", 390, 860, ""}:        narrowRules,
			} {
				tab.applyStyle(look)
				if faults := tab.axeViolations(rules); len(faults) > 0 {
					t.Errorf("%s: %s", look.name, strings.Join(faults, "\n"))
				}
			}
		})
	}
	if status, _, _ := b.getPage("/pools/nowhere"); status != 404 {
		t.Errorf("a pool that is not there: %d", status)
	}
}

// The sets of rules that axe checks: all rules, and only the rules that another colour scheme or a narrow screen may
// violate.
const (
	allRules    = `["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]`
	colourRules = `{ type: "rule", values: ["color-contrast", "link-in-text-block"] }`
	narrowRules = `{ type: "rule", values: ["target-size", "scrollable-region-focusable", "color-contrast"] }`
)

// axeViolations runs axe on the page and returns the rules that the page violates.
func (b *tab) axeViolations(rules string) []string {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	list, err := chromedp.Run(ctx, chromedp.Evaluate[[]string](`axe.run(document, { runOnly: `+rules+`, resultTypes: ["violations"] }).then((found) =>
		found.violations.flatMap((v) => v.nodes.slice(0, 4).map((n) => v.id + ": " + n.html.slice(0, 160) + " | " + n.failureSummary.slice(0, 260))))`, chromedp.EvalAwaitPromise))
	b.Must(err)
	return list
}

// TestReadableWithoutScript checks that each page is complete if its script does not run.
func TestReadableWithoutScript(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3, "d-1", "d-2")
	b.createUsedLimitSet("2")
	granted := b.ReportUntilGranted("d-1")
	for path, parts := range map[string][]string{
		"/":                   {"<b>1</b></a> / 3", `href="/pools/p"`},
		"/pools/p":            {"d-1", fmt.Sprintf("/tasks/%d", granted.ID), "UTC", "/pools/p/waiting?code=device_unknown"},
		"/pools/p/waiting":    {"d-2", "device d-2 is not registered"},
		"/batches/1/failures": {"No attempt ended", "7 days", "dispatcher batches failures 1"},
		fmt.Sprintf("/pools/p/slots/%d", granted.Slot): {"d-1", "holds it"},
		"/batches":        {`href="/batches/1"`, "1 dispatched"},
		"/tasks":          {"d-1", "d-2", "pending"},
		"/devices":        {"d-1"},
		"/activity":       {"task.granted", "batch.created", "pool.created"},
		"/new-batch":      {"Idempotency-Key"},
		"/?name=p":        {`<tr id="pool-p">`, `href="/pools/p"`},
		"/find?q=d-":      {`href="/devices/d-1"`},
		"/batches/1/edit": {"Weight"},
		"/limits":         {`href="/limits/sms"`, "per-phone: 3/1m per facts.phone"},
		"/limits/sms":     {"facts.phone#", "<b>2</b> / 3", "dispatcher limits usage sms"},
	} {
		_, text, _ := b.getPage(path)
		expectContains(t, text, parts...)
	}
}

// TestATaskTellsThatItsOutputWasDropped checks the page of a task whose output was dropped: the page shows this,
// also in the list of events.
func TestATaskTellsThatItsOutputWasDropped(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3, "d-1")
	g := b.ReportUntilGranted("d-1")
	b.sendReport("d-1", map[string]any{"accept": false, "results": []map[string]any{{
		"task": g.ID, "token": g.Token, "status": "succeeded", "output": strings.Repeat("x", 32<<10),
	}}})
	_, text, _ := b.getPage(fmt.Sprintf("/tasks/%d", g.ID))
	expectContains(t, text, "The output of the device was too large and was dropped.", "output too large, dropped", "result.output_dropped")
}

// TestBatchIsCreatedThroughThePage checks the form for a new batch: the tasks are counted and then created, only
// once even if the form is sent several times.
func TestBatchIsCreatedThroughThePage(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3)
	tab := openTab(t)
	tab.open(b.URL + "/new-batch?pool=p")
	tab.runActions(chromedp.SendKeys(chromedp.CSS("#name"), "by hand"), chromedp.SendKeys(chromedp.CSS("#devices"), "d-1, d-2\nd-3"), chromedp.SendKeys(chromedp.CSS("#payload"), `{"a": 1`))
	tab.click("button[value=count]")
	tab.waitForJS(`document.querySelector(".problem").textContent.includes("not JSON")`)
	tab.expectMessage("422")
	evalJS[string](tab, `document.getElementById("payload").value = '{"a": 1}'`)
	tab.click("button[value=count]")
	tab.waitForJS(`document.querySelector(".note").textContent.includes("3 tasks")`)
	key := evalJS[string](tab, `document.querySelector("input[name=key]").value`)
	tab.click("button[value=create]")
	tab.waitForJS(`location.pathname === "/batches/1"`)
	form := url.Values{"name": {"by hand"}, "pool": {"p"}, "payload": {`{"a": 1}`}, "devices": {"d-1, d-2\r\nd-3"}, "attempts": {"3"}, "weight": {"1"}, "priority": {"0"}, "key": {key}, "do": {"create"}}
	b.postForm("/new-batch", form, nil)
	var list struct{ Batches []struct{ Total int } }
	b.Do("GET", "/v1/batches", nil, &list)
	if len(list.Batches) != 1 || list.Batches[0].Total != 3 {
		t.Errorf("batches: %+v", list)
	}
}

// TestBulkSaysHowMany checks an action on many tasks: the page shows their number before the action changes them.
func TestBulkSaysHowMany(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3, deviceIDs(7)...)
	tab := openTab(t)
	tab.open(b.URL + "/tasks?batch=1")
	tab.click("main a.danger")
	tab.waitForJS(`document.querySelector("button.danger").textContent.includes("Cancel 7 tasks")`)
	tab.click("button.danger")
	tab.waitForJS(`document.querySelector("#task-pills").textContent.includes("cancelled 7")`)
	tab.open(b.URL + "/retry-tasks?batch=1")
	if text := tab.elementText("main"); !strings.Contains(text, "0 tasks") && !strings.Contains(text, "7 tasks") {
		t.Errorf("a bulk retry: %s", text)
	}
}

// TestDisconnectedPageCatchesUp checks an open page whose server cannot be reached: the page shows this, and
// catches up when the server is back.
func TestDisconnectedPageCatchesUp(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3, "d-1")
	tab := openTab(t)
	tab.open(b.URL + "/pools/p")
	tab.waitForJS(`document.getElementById("pulse").textContent === "live"`)
	b.ReportUntilGranted("d-1")
	tab.waitForJS(`document.querySelectorAll(".grid .cell.fresh").length === 1`)
	evalJS[bool](tab, `window.mark = true`) // a reload would remove it
	b.Server.CloseClientConnections()
	tab.waitForJS(`!document.getElementById("stale").hidden && document.getElementById("stale").textContent.startsWith("Disconnected")`)
	b.Do("PATCH", "/v1/pools/p", map[string]any{"capacity": 8}, nil)
	tab.waitForJS(`document.getElementById("stale").hidden && document.querySelectorAll(".grid .cell").length >= 8 && window.mark`)
	tab.expectMessage("ERR_")
}
