package web_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestTheGridFollowsWithoutAReload checks the grid of slots and the first page while they are open: they show a
// grant and its end without a reload.
func TestTheGridFollowsWithoutAReload(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 60, deviceIDs(3)...)
	home := openTab(t)
	home.open(b.URL + "/")
	home.waitForJS(`document.querySelector("#pool-p .figure b").textContent === "0"`)
	grid := home.openSecondTab()
	grid.open(b.URL + "/pools/p")
	grid.waitForJS(`document.querySelectorAll(".grid .cell.free").length === 60`)

	granted := b.ReportUntilGranted("d-0")
	cell := fmt.Sprintf("#slot-%d", granted.Slot)
	grid.waitForJS(fmt.Sprintf(`document.querySelector("%s").classList.contains("fresh")`, cell))
	grid.waitForJS(fmt.Sprintf(`document.querySelector("%s a").dataset.device === "d-0"`, cell))
	grid.waitForJS(`document.querySelector("#pool-head .figures b").textContent === "1"`)
	grid.waitForJS(`document.querySelectorAll("#holders tbody tr").length === 1`)
	home.waitForJS(`document.querySelector("#pool-p .figure b").textContent === "1"`)

	// The cell of a slot has the focus. Its tooltip is shown.
	grid.runActions(chromedp.Focus(chromedp.CSS(cell + " a")))
	grid.waitForJS(fmt.Sprintf(`!document.getElementById("tip").hidden && document.getElementById("tip").textContent.includes("d-0") &&
		document.getElementById("tip").textContent.includes("%d")`, granted.Token))

	b.sendReport("d-0", map[string]any{"id": "r", "accept": false, "results": []map[string]any{{"task": granted.ID, "token": granted.Token, "status": "succeeded"}}})
	grid.waitForJS(`document.querySelectorAll(".grid .cell.free").length === 60`)
	grid.checkScreen("pool-free")
}

// TestArrowKeysWalkOverTheGrid checks the grid of slots: the arrow keys move between the slots that have a tooltip.
func TestArrowKeysWalkOverTheGrid(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 40, deviceIDs(32)...)
	for i := range 32 {
		b.ReportUntilGranted(fmt.Sprintf("d-%d", i))
	}
	tab := openTab(t)
	tab.runActions(chromedp.EmulateViewport(1280, 900)) // 15 slots in a row
	tab.open(b.URL + "/pools/p")
	tab.runActions(chromedp.Focus(chromedp.CSS("#slot-1 a")))
	for _, step := range []struct{ key, want string }{
		{"ArrowRight", "slot-2"}, {"ArrowDown", "slot-17"}, {"ArrowDown", "slot-17"}, {"ArrowLeft", "slot-16"}, {"ArrowDown", "slot-31"}, {"ArrowRight", "slot-31"}, {"ArrowUp", "slot-16"},
	} {
		evalJS[bool](tab, fmt.Sprintf(`document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: %q, bubbles: true}))`, step.key))
		if at := evalJS[string](tab, `document.activeElement.closest("li").id`); at != step.want {
			t.Errorf("%s leads to %s, want %s", step.key, at, step.want)
		}
	}
}

// TestSmallSlotsHaveShapes checks the grid of a pool whose slots are too small for a sign: they also differ in
// shape, and not only in colour.
func TestSmallSlotsHaveShapes(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 2000, "d-1")
	b.ReportUntilGranted("d-1")
	tab := openTab(t)
	tab.open(b.URL + "/pools/p")
	looks := evalJS[string](tab, `["free", "reserved", "fresh", "half", "expiring", "stale"].map(look => {
		const s = getComputedStyle(document.querySelector(".legend .cell." + look));
		return [s.borderTopStyle, s.backgroundImage.replace(/rgba?\([^)]*\)|color\([^)]*\)/g, "colour")].join("/");
	}).join("\n")`)
	seen := map[string]bool{}
	for look := range strings.Lines(looks) {
		if seen[strings.TrimSpace(look)] {
			t.Errorf("two look alike but for their colour:\n%s", looks)
		}
		seen[strings.TrimSpace(look)] = true
	}
}
