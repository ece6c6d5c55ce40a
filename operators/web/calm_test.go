package web_test

import (
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

// onTop evaluates to the id of the first row in the list of events.
const onTop = `document.querySelector("#activity tbody tr").id`

// TestARowUnderTheCursorStays checks that rows under the pointer stay in their place. New rows are
// counted, and shown when the user asks for them.
func TestARowUnderTheCursorStays(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", 60, devices(9)...)
	b.grant("d-0")
	tab := browse(t)
	tab.open(b.url + "/activity?kind=task.granted")
	tab.until(`document.getElementById("pulse").textContent === "live" && document.querySelectorAll("#activity tbody tr").length === 1`)
	first := ask[string](tab, onTop)
	tab.point("#activity tbody tr")
	for _, d := range devices(9)[1:5] {
		b.grant(d)
	}
	tab.until(`!document.getElementById("more").hidden && document.getElementById("more").textContent === "4 new"`)
	if now := ask[string](tab, onTop); now != first {
		t.Errorf("the first row was %s, and is %s", first, now)
	}
	tab.click("#more")
	tab.until(`document.querySelectorAll("#activity tbody tr").length === 5 && document.getElementById("more").hidden && ` + onTop + ` !== "` + first + `"`)
	b.grant("d-6") // the pointer is not over the list now
	tab.until(`document.querySelectorAll("#activity tbody tr").length === 6`)
}

// TestUpdatesArePaused checks that updates can be paused, and that the updates of the pause are shown
// afterwards.
func TestUpdatesArePaused(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", 60, devices(9)...)
	tab := browse(t)
	tab.open(b.url + "/pools/p")
	tab.until(`document.getElementById("pulse").textContent === "live"`)
	tab.click("#pause")
	tab.until(`document.getElementById("pulse").textContent === "paused"`)
	other := tab.another()
	other.open(b.url + "/pools/p")
	b.grant("d-0")
	other.until(`document.querySelectorAll(".grid .cell.fresh").length === 1`)
	b.grant("d-1")
	other.until(`document.querySelectorAll(".grid .cell.fresh").length === 2`)
	if n := ask[int](tab, `document.querySelectorAll(".grid .cell.fresh").length`); n != 0 {
		t.Errorf("a paused page shows %d slots that were granted since", n)
	}
	tab.click("#pause")
	tab.until(`document.querySelectorAll(".grid .cell.fresh").length === 2 && document.getElementById("pulse").textContent === "live"`)
}

// TestASilentServerIsNoticed checks that a page notices within five seconds that the server sends
// nothing, although the connection is open.
func TestASilentServerIsNoticed(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", 3)
	proxy := servers.NewProxy(t, b.server.Listener.Addr().String())
	tab := browse(t)
	tab.open("http://" + proxy.Addr + "/pools/p")
	tab.until(`document.getElementById("pulse").textContent === "live"`)
	ask[bool](tab, `(() => { const said = new MutationObserver(() => { window.saidAt = window.saidAt || Date.now(); });
		said.observe(document.getElementById("stale"), { attributes: true, childList: true }); return true; })()`)
	proxy.HoldReplies()
	held := time.Now()
	tab.until(`document.getElementById("stale").textContent.startsWith("The server has been silent")`)
	if took := time.UnixMilli(ask[int64](tab, `window.saidAt`)).Sub(held); took > 6*time.Second {
		t.Errorf("it was said after %s", took)
	}
	proxy.ReleaseReplies()
	tab.until(`document.getElementById("stale").hidden`)
}

// TestNothingShiftsWhileSlotsChange checks that no element of a page moves while slots are granted and
// released.
func TestNothingShiftsWhileSlotsChange(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", 12, devices(30)...)
	tab := browse(t)
	tab.open(b.url + "/pools/p")
	tab.until(`document.getElementById("pulse").textContent === "live"`)
	ask[bool](tab, `(() => { window.shifts = []; new PerformanceObserver((list) => { for (const e of list.getEntries()) window.shifts.push(
		e.value.toFixed(4) + " " + e.sources.map((s) => s.node && (s.node.id || s.node.className || s.node.nodeName)).join(",")); }).observe({ type: "layout-shift", buffered: false }); return true; })()`)
	for round := range 3 {
		for i := range 3 {
			granted := b.grant(devices(30)[3*round+i])
			if i == 0 {
				b.report(devices(30)[3*round], map[string]any{"accept": false, "results": []map[string]any{{"task": granted.ID, "token": granted.Token, "status": "succeeded"}}})
			}
		}
	}
	tab.until(`document.querySelectorAll(".grid .cell.fresh").length === 6`)
	if shifts := ask[[]string](tab, `window.shifts`); len(shifts) > 0 {
		t.Errorf("shifts: %q", shifts)
	}
}

// point moves the pointer over an element.
func (b *tab) point(selector string) {
	b.Helper()
	at := ask[struct{ X, Y float64 }](b, `(() => { const r = document.querySelector(`+"`"+selector+"`"+`).getBoundingClientRect(); return { X: r.left + r.width / 2, Y: r.top + r.height / 2 }; })()`)
	b.do(chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, at.X, at.Y))
}
