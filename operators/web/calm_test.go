package web_test

import (
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// firstEventJS evaluates to the id of the first row in the list of events.
const firstEventJS = `document.querySelector("#activity tbody tr").id`

// TestARowUnderTheCursorStays checks the list of events while the pointer is over it: its rows stay in their place.
// New rows are counted, and they are shown when the user asks for them.
func TestARowUnderTheCursorStays(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 60, deviceIDs(9)...)
	b.ReportUntilGranted("d-0")
	tab := openTab(t)
	tab.open(b.URL + "/activity?kind=task.granted")
	tab.waitForJS(`document.getElementById("pulse").textContent === "live" && document.querySelectorAll("#activity tbody tr").length === 1`)
	first := evalJS[string](tab, firstEventJS)
	tab.movePointer("#activity tbody tr")
	for _, d := range deviceIDs(9)[1:5] {
		b.ReportUntilGranted(d)
	}
	tab.waitForJS(`!document.getElementById("more").hidden && document.getElementById("more").textContent === "4 new"`)
	if now := evalJS[string](tab, firstEventJS); now != first {
		t.Errorf("the first row was %s, and is %s", first, now)
	}
	tab.click("#more")
	tab.waitForJS(`document.querySelectorAll("#activity tbody tr").length === 5 && document.getElementById("more").hidden && ` + firstEventJS + ` !== "` + first + `"`)
	b.ReportUntilGranted("d-6") // the pointer is not over the list now
	tab.waitForJS(`document.querySelectorAll("#activity tbody tr").length === 6`)
}

// TestAPageIsFrozen checks that a user can freeze a page. The updates that arrive while the page is frozen are shown
// afterwards.
func TestAPageIsFrozen(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 60, deviceIDs(9)...)
	tab := openTab(t)
	tab.open(b.URL + "/pools/p")
	tab.waitForJS(`document.getElementById("pulse").textContent === "live"`)
	tab.click("#freeze")
	tab.waitForJS(`document.getElementById("pulse").textContent === "frozen" && document.getElementById("freeze").textContent === "Unfreeze"`)
	other := tab.openSecondTab()
	other.open(b.URL + "/pools/p")
	b.ReportUntilGranted("d-0")
	other.waitForJS(`document.querySelectorAll(".grid .cell.fresh").length === 1`)
	b.ReportUntilGranted("d-1")
	other.waitForJS(`document.querySelectorAll(".grid .cell.fresh").length === 2`)
	if n := evalJS[int](tab, `document.querySelectorAll(".grid .cell.fresh").length`); n != 0 {
		t.Errorf("a frozen page shows %d slots that were granted since", n)
	}
	tab.click("#freeze")
	tab.waitForJS(`document.querySelectorAll(".grid .cell.fresh").length === 2 && document.getElementById("pulse").textContent === "live"`)
}

// TestASilentServerIsNoticed checks an open page whose server sends nothing although the connection is open: the
// page shows this before it connects again.
func TestASilentServerIsNoticed(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3)
	proxy := servers.NewProxy(t, b.Server.Listener.Addr().String())
	tab := openTab(t)
	tab.open("http://" + proxy.Addr + "/pools/p")
	tab.waitForJS(`document.getElementById("pulse").textContent === "live"`)
	proxy.HoldReplies()
	tab.waitForJS(`document.getElementById("stale").textContent.startsWith("No message from the server")`)
	proxy.ReleaseReplies()
	tab.waitForJS(`document.getElementById("stale").hidden`)
}

// TestNothingShiftsWhileSlotsChange checks a page on which slots are granted and released, and a time gets longer: none
// of its elements moves.
func TestNothingShiftsWhileSlotsChange(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 12, deviceIDs(30)...)
	tab := openTab(t)
	tab.open(b.URL + "/pools/p")
	tab.waitForJS(`!document.getElementById("freeze").hidden`) // the scripts have changed the page
	tab.waitForJS(`window.painted || (requestAnimationFrame(() => requestAnimationFrame(() => { window.painted = true; })), false)`)
	evalJS[bool](tab, `(() => { window.shifts = []; new PerformanceObserver((list) => { for (const e of list.getEntries()) window.shifts.push(
		e.value.toFixed(4) + " " + e.sources.map((s) => s.node && (s.node.id || s.node.className || s.node.textContent.trim().slice(0, 20)) + " " + JSON.stringify([s.previousRect, s.currentRect])).join(",")); }).observe({ type: "layout-shift", buffered: false }); return true; })()`)
	for round := range 3 {
		for i := range 3 {
			granted := b.ReportUntilGranted(deviceIDs(30)[3*round+i])
			if i == 0 {
				b.sendReport(deviceIDs(30)[3*round], map[string]any{"accept": false, "results": []map[string]any{{"task": granted.ID, "token": granted.Token, "status": "succeeded"}}})
			}
		}
	}
	tab.waitForJS(`document.querySelectorAll(".grid .cell.fresh").length === 6`)
	tab.waitForJS(`(() => { const oldest = document.querySelector("#pool-head .oldest time"); oldest.dateTime = new Date(Date.now() - 70000).toISOString();
		return oldest.textContent.startsWith("1 min"); })()`)
	if shifts := evalJS[[]string](tab, `window.shifts`); len(shifts) > 0 {
		t.Errorf("shifts: %q", shifts)
	}
}

// movePointer moves the pointer over the element that the selector finds.
func (b *tab) movePointer(selector string) {
	b.Helper()
	at := evalJS[struct{ X, Y float64 }](b, `(() => { const r = document.querySelector(`+"`"+selector+"`"+`).getBoundingClientRect(); return { X: r.left + r.width / 2, Y: r.top + r.height / 2 }; })()`)
	b.runActions(chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, at.X, at.Y))
}
