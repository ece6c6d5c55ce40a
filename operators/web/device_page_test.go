package web_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/operators"
)

// TestADevicePageExplainsItsDevice checks the page of a device in a browser: it says why the device gets nothing, and shows its attempts
// with their errors and the share that failed, as the API does. The device is then blocked with a reason, and gets a new token, which is
// shown once.
func TestADevicePageExplainsItsDevice(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 1)
	b.Do("POST", "/v1/batches", map[string]any{"pool": "p", "devices": []string{"d-1", "d-1", "d-1", "d-2"}, "max_attempts": 1}, nil)
	for _, end := range []string{"failed", "succeeded"} {
		granted := b.ReportUntilGranted("d-1")
		b.sendReport("d-1", map[string]any{"accept": false, "results": []any{map[string]any{"task": granted.ID, "token": granted.Token, "status": end, "error": map[string]string{"failed": "connection refused"}[end]}}})
	}
	b.ReportUntilGranted("d-2")
	tab := openTab(t)
	tab.open(b.URL + "/devices/d-1")
	var why operators.DeviceWhy
	b.Do("GET", "/v1/devices/d-1/why", nil, &why)
	if why.Task == nil || *why.Task != 3 || len(why.Reasons) == 0 || why.Reasons[0].Code != "pool_full" {
		t.Fatalf("why: %+v", why)
	}
	detail, _, _ := strings.Cut(why.Reasons[0].Detail, ":")
	expectContains(t, tab.elementText("#why"), "Why it gets nothing", detail, "task 3", "Raise the capacity of p")
	var history operators.HoldingList
	b.Do("GET", "/v1/devices/d-1/history", nil, &history)
	var want []string
	for _, one := range history.History {
		want = append(want, fmt.Sprintf("%d|%s|%s|%s", one.Task, one.EndedBy, one.Pool, one.Error))
	}
	shown := evalJS[[]string](tab, `[...document.querySelectorAll("#attempts tbody tr")].map((row) => [0, 1, 4, 5].map((n) => row.cells[n].textContent).join("|"))`)
	if !slices.Equal(shown, want) || !slices.Equal(want, []string{"2|succeeded|p|", "1|failed|p|connection refused"}) {
		t.Errorf("attempts %q, the API has %q", shown, want)
	}
	if took := tab.elementText("#attempts tbody tr td:nth-child(4)"); !strings.HasSuffix(took, "s") {
		t.Errorf("it took %q", took)
	}
	expectContains(t, tab.elementText("#attempts .sum"), "1 of the last 2 attempts failed")
	tab.checkScreen("device-why")

	tab.click(`a[href="/devices/d-1/block"]`)
	tab.waitForJS(`document.querySelector("#reason")`)
	tab.setInput("#reason", "it smokes")
	tab.checkScreen("device-block")
	tab.click("form.fields button.danger")
	tab.waitForJS(`location.pathname === "/devices/d-1" && document.readyState === "complete"`)
	expectContains(t, tab.elementText("#device .note"), "Blocked by bootstrap", "it smokes")
	expectContains(t, tab.elementText("#why"), "device d-1 is blocked by bootstrap", "because: it smokes", "Unblock d-1")
	var device operators.Device
	b.Do("GET", "/v1/devices/d-1", nil, &device)
	var events operators.EventList
	b.Do("GET", "/v1/events?device=d-1&kind=device.blocked", nil, &events)
	if device.BlockReason != "it smokes" || device.BlockedBy != "bootstrap" || device.BlockedAt == nil || len(events.Events) != 1 || events.Events[0].Detail != "it smokes" {
		t.Errorf("the device %+v, the event %+v", device, events)
	}
	tab.checkScreen("device-blocked")
	tab.click("#why form button")
	tab.waitForJS(`location.pathname === "/devices/d-1" && !document.querySelector(".tag.bad")`)

	tab.click(`a[href="/devices/d-1/token"]`)
	tab.waitForJS(`document.querySelector("#overlap")`)
	tab.click("form.fields button.primary")
	tab.waitForJS(`document.querySelector("#secret")`)
	token := tab.elementText("#secret")
	if a := b.Call("POST", "/v1/devices/d-1/report", token, map[string]any{"id": "x"}); a.Status != 200 {
		t.Errorf("a report with the new token: %d %s", a.Status, a.Body)
	}
	tab.checkScreen("device-token")
	for _, path := range []string{"/devices/d-1", "/devices/d-1/token"} {
		if _, text, _ := b.getPage(path); strings.Contains(text, token) {
			t.Errorf("%s shows the token again", path)
		}
	}
}
