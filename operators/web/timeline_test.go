package web_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestSlotsOverTime checks the page of a pool's slots. A cell shows the end of its device's name and the batch. The
// time line shows who held the slot and how each holding ended. It has a cursor for the pointer and for the keys.
func TestSlotsOverTime(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 2, "meter-000017")
	b.Do("POST", "/v1/batches", map[string]any{"pool": "p", "devices": []string{"meter-000018", "meter-000019"}}, nil)
	first := b.ReportUntilGranted("meter-000017")
	b.Do("POST", fmt.Sprintf("/v1/pools/p/slots/%d/release", first.Slot), map[string]any{"reason": "it hangs", "now": true}, nil)
	second := b.ReportUntilGranted("meter-000018")
	tab := openTab(t)
	tab.runActions(chromedp.EmulateViewport(1280, 900))
	tab.open(b.URL + "/pools/p")
	cell := fmt.Sprintf("#slot-%d", second.Slot)
	tab.waitForJS(fmt.Sprintf(`document.querySelector("%s em").textContent === "000018" && document.querySelector("%s u").textContent === "C"`, cell, cell))
	tab.waitForJS(`document.querySelector("#batches").textContent.includes("batch 1") && document.querySelector("#batches").textContent.includes("batch 2")`)
	row := fmt.Sprintf(`document.querySelectorAll("#lanes li")[%d]`, second.Slot)
	tab.waitForJS(`document.querySelectorAll("#lanes rect[fill]").length === 2 && document.querySelectorAll("#lanes rect.released").length === 1`)

	// The pointer is first over a holding that continues, and then over a time before the first holding.
	over := func(expression string) {
		evalJS[bool](tab, fmt.Sprintf(`(() => { const e = %s, b = e.getBoundingClientRect();
			return e.dispatchEvent(new PointerEvent("pointermove", {bubbles: true, clientX: b.left + b.width / 2, clientY: b.top + b.height / 2})); })()`, expression))
	}
	over(row + `.querySelector("rect[fill]:last-of-type")`)
	tab.waitForJS(`!document.getElementById("cursor").hidden && document.getElementById("readout").textContent.includes("meter-00001")`)
	over(row + `.querySelector("svg")`)
	tab.waitForJS(`document.getElementById("readout").textContent.includes("not held at")`)
	evalJS[bool](tab, row+`.querySelector("a").focus() || true`)
	evalJS[bool](tab, row+`.querySelector("a").dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowLeft", bubbles: true}))`)
	tab.waitForJS(`document.getElementById("readout").textContent.includes("meter-000018") && document.getElementById("readout").textContent.includes("holds it")`)

	// The row of the slot links to all holders of this slot.
	tab.runActions(chromedp.Click(chromedp.CSS(fmt.Sprintf("#lanes li:nth-child(%d) a", second.Slot+1))))
	tab.waitForJS(`location.pathname.startsWith("/pools/p/slots/")`)
	tab.waitForJS(`document.querySelector("#history").textContent.includes("meter-000018") && document.querySelector("#history").textContent.includes("holds it")`)
	tab.checkScreen("slot")
	_, text, _ := b.getPage(fmt.Sprintf("/pools/p/slots/%d", first.Slot))
	expectContains(t, text, "meter-000017", "released by force")
}

// TestChartHasACursorAndRanges checks the chart of a pool: in each range of time, its cursor shows the values from
// which the chart is drawn.
func TestChartHasACursorAndRanges(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3, deviceIDs(3)...)
	for i := range 3 {
		g := b.ReportUntilGranted(fmt.Sprintf("d-%d", i))
		if i == 0 {
			b.sendReport("d-0", map[string]any{"accept": false, "results": []map[string]any{{"task": g.ID, "token": g.Token, "status": "succeeded"}}})
		}
	}
	tab := openTab(t)
	for span, name := range map[string]string{"24h": "24 h", "7d": "7 days"} {
		tab.open(b.URL + "/pools/p?range=" + span)
		tab.waitForJS(`document.querySelector("#chart .plot") !== null`)
		if current := tab.elementText("#chart .ranges a[aria-current]"); current != name {
			t.Errorf("%s: the range shown is %q", span, current)
		}
		tab.waitForJS(`document.querySelector("#chart .plot").dataset.granted.split(" ").reduce((a, b) => a + Number(b), 0) === 3`)
		evalJS[bool](tab, `document.querySelector("#chart .plot").focus() || true`)
		evalJS[bool](tab, `document.querySelector("#chart .plot").dispatchEvent(new KeyboardEvent("keydown", {key: "End", bubbles: true}))`)
		tab.waitForJS(`!document.getElementById("cursor").hidden && document.getElementById("readout").textContent.includes("2 of 3 held, 3 granted, 0 taken back")`)
		tab.checkScreen("pool-" + span)
	}
	tab.open(b.URL + "/pools/p")
	tab.waitForJS(`document.querySelectorAll("#chart .level").length > 1 && document.querySelectorAll("#chart .rule").length > 1`)
	tab.waitForJS(`document.querySelector("#chart .plot").dataset.held.endsWith("2")`)
	evalJS[bool](tab, `(() => { const e = document.querySelector("#chart .plot"), b = e.getBoundingClientRect();
		return e.dispatchEvent(new PointerEvent("pointermove", {bubbles: true, clientX: b.right - 1, clientY: b.top + 9})); })()`)
	tab.waitForJS(`document.getElementById("readout").textContent.includes("2 of 3 held") && document.querySelector("#chart .plot").getAttribute("aria-valuetext").includes("2 of 3 held")`)
	evalJS[bool](tab, `document.querySelector("h1").dispatchEvent(new PointerEvent("pointermove", {bubbles: true}))`)
	tab.waitForJS(`document.getElementById("cursor").hidden`)
	// Without the script, the page still has the axes of the chart with their labels.
	_, text, _ := b.getPage("/pools/p?range=7d")
	expectContains(t, text, `class="level"`, "granted in 1 h", "?range=24h")
	if strings.Contains(text, "NaN") {
		t.Error("a chart with NaN")
	}
}
