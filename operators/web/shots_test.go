package web_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/fleetslots/dispatcher/devices"
	rig "github.com/fleetslots/dispatcher/internal/test/rig"
)

// TestPicturesOfARunningOne takes pictures of the pages of a running dispatcher:
//
//	dispatcher dev --simulate 500
//	mkdir /tmp/shots
//	WEB_URL=http://127.0.0.1:8080 WEB_DATA=.dispatcher WEB_SHOTS=/tmp/shots go test ./operators/web -run 'TestPicturesOfARunningOne$'
//
// In addition to the simulated fleet, the test creates devices of its own (meters). Some tasks of the meters fail. The
// leases of the tasks last until the last picture is taken. WEB_DATA is the data folder of the dispatcher, which
// contains the tokens.
func TestPicturesOfARunningOne(t *testing.T) {
	t.Parallel()
	url := os.Getenv("WEB_URL")
	if url == "" || os.Getenv("WEB_SHOTS") == "" {
		t.Skip("runs with WEB_URL and WEB_SHOTS in the environment")
	}
	m := simulatedMeters{Client: rig.NewClient(t, url, readToken(t, "admin-token"), readToken(t, "fleet-token"))}
	m.runTasks()
	tab := openTab(t)
	m.signIn(tab)
	follow := func(from, selector string) string {
		tab.open(url + from)
		path := evalJS[string](tab, `(document.querySelector(`+"`"+selector+"`"+`) || {getAttribute: () => ""}).getAttribute("href")`)
		if path == "" {
			t.Errorf("%s: nothing to show for %s", from, selector)
		}
		return path
	}
	batch := fmt.Sprintf("/batches/%d", m.batch)
	tasks := func(state string) string { return fmt.Sprintf("/tasks?batch=%d&state=%s", m.batch, state) }
	list := "#task-list tbody a"
	for name, path := range map[string]string{
		"pools": "/", "pool-rows": "/?sort=trouble", "find": "/find?q=meter", "batches": "/batches", "batch-new": "/new-batch", "tasks": "/tasks", "tasks-failed": tasks("failed"), "devices": "/devices",
		"devices-recent": "/devices?show=recent", "devices-silent": "/devices?show=silent", "activity": "/activity", "system": "/system", "limit-sets": "/limits", "limit-set": "/limits/sms", "pool-new": "/new-pool",
		"pool": "/pools/demo", "pool-day": "/pools/demo?range=24h", "slot": "/pools/meters/slots/3", "pool-edit": "/pools/demo/edit", "pool-pause": "/pools/demo/pause", "paused": "/pools/meters", "waiting": "/pools/meters/waiting", "failures": batch + "/failures?by=attributes.firmware", "empty-pool": "/pools/spare",
		"batch": follow("/batches?", `#batch-list tbody a[href^="/batches/1"]`), "batch-failures": batch, "batch-cancel": batch + "/cancel",
		"batch-values": batch + "?field=firmware&tag=site", "batch-edit": batch + "/edit", "batch-clone": fmt.Sprintf("/new-batch?from=%d", m.batch),
		"task-running": follow(tasks("dispatched"), list), "task-waiting": follow(tasks("pending"), list), "task-failed": follow(tasks("failed"), list),
		"task-done": follow(tasks("succeeded"), list), "device": "/devices/meter-01", "device-block": "/devices/meter-01/block", "device-busy": "/devices/meter-20",
		"bulk": fmt.Sprintf("/cancel-tasks?batch=%d", m.batch), "release": follow("/pools/meters", "#holders a.danger"), "missing": "/tasks/999999999",
		"tasks-none": "/tasks?state=expired", "activity-none": "/activity?kind=token.revoked",
	} {
		if path == "" {
			continue
		}
		tab.open(url + path)
		tab.waitForJS(`document.querySelector("h1").textContent !== ""`)
		if live := evalJS[bool](tab, `document.body.dataset.live !== undefined`); live {
			tab.waitForJS(`document.getElementById("pulse").textContent === "live"`)
		}
		tab.checkScreen(name)
	}
	tab.expectMessage("ERR_")
	tab.expectMessage("404")
}

// simulatedMeters are devices that the test itself simulates, with a pool and a batch for them.
type simulatedMeters struct {
	rig.Client
	batch int64
}

// runTasks lets thirty of forty meters start a task. Most of them end it, with different results. Eight of them
// continue to run. Then the pool is paused.
func (m *simulatedMeters) runTasks() {
	m.Helper()
	m.Do(http.MethodPut, "/v1/pools/meters", map[string]any{"capacity": 12, "lease_ms": 3_600_000}, nil)
	m.Do(http.MethodPut, "/v1/pools/spare", map[string]any{"capacity": 24}, nil)
	m.Do(http.MethodPost, "/v1/pools/meters/resume", nil, nil)
	m.Do(http.MethodPut, "/v1/limits/sms", map[string]any{"limits": []map[string]any{{"name": "per-phone", "per": "facts.phone", "algorithm": "fixed", "per_ms": 3_600_000, "max": 5}}}, nil)
	for i := range 8 {
		m.Do(http.MethodPost, "/v1/limits/sms/take", map[string]any{"facts": map[string]any{"phone": i}, "cost": 1 + i%5}, nil)
	}
	names := make([]string, 40)
	for i := range names {
		names[i] = fmt.Sprintf("meter-%02d", i+1)
	}
	m.batch = m.CreateBatch(map[string]any{
		"name": "meter firmware 7.3", "pool": "meters", "kind": "update", "payload": map[string]any{"image": "meter-7.3.bin", "sha256": strings.Repeat("9f86d081", 8)},
		"max_attempts": 1, "devices": names, "abort": map[string]any{"failure": 0.9, "min": 20},
	})
	for i, name := range names[:30] {
		m.runTask(name, i)
	}
	m.Do(http.MethodPost, "/v1/pools/meters/pause", map[string]any{"reason": "the image is looked at"}, nil)
}

// signIn signs the tab in as the admin.
func (m *simulatedMeters) signIn(tab *tab) {
	m.Helper()
	tab.open(m.URL + "/")
	tab.runActions(chromedp.SendKeys(chromedp.CSS("#token"), m.Admin+kb.Enter))
	tab.waitForJS(`document.querySelector("nav")`)
}

// runTask lets the meter with this name take its task. The meter also ends it, unless it is one of the meters that
// continue to run.
func (m *simulatedMeters) runTask(name string, i int) {
	m.Helper()
	var reply devices.Reply
	report := map[string]any{"id": "a", "attributes": map[string]any{"firmware": "7.2", "model": "M-200", "signal_dbm": -71 - i}}
	m.Await("a grant for "+name, func() bool {
		reply = m.Report(name, report)
		return reply.Task != nil
	}, &reply)
	m.Do(http.MethodPatch, "/v1/devices/"+name, map[string]any{"tags": map[string]any{"site": "berlin", "model": "m200"}}, nil)
	if i%4 == 3 {
		return
	}
	errors := []string{"checksum mismatch: the image is 4,194,304 bytes, want 4,198,400", "no route to host 203.0.113.7 after three tries", "checksum mismatch: the image is 4,194,304 bytes, want 4,198,400"}
	result := map[string]any{"task": reply.Task.ID, "token": reply.Task.Token, "status": "succeeded", "output": map[string]any{"took_ms": 41_200 + 137*i, "firmware": "7.3"}}
	if i%4 == 0 {
		result["status"], result["error"] = "failed", errors[i/4%3]
	}
	m.Report(name, map[string]any{"id": "b", "accept": false, "results": []any{result}})
}

// readToken returns the token in the file with this name.
func readToken(t *testing.T, name string) string {
	t.Helper()
	secret, err := os.ReadFile(filepath.Join(os.Getenv("WEB_DATA"), name))
	if err != nil {
		t.Fatal("WEB_DATA: ", err)
	}
	return strings.TrimSpace(string(secret))
}
