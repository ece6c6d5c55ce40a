package web_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestForcedReleaseThroughThePage releases a held slot by force through the pages. The page names the affected
// device and task, a reason is required, and the release is in the log.
func TestForcedReleaseThroughThePage(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3, "d-1")
	granted := b.ReportUntilGranted("d-1")
	tab := openTab(t)
	tab.open(b.URL + "/pools/p")
	tab.click("#holders a.danger")
	tab.waitForJS(`document.querySelector("h1").textContent.startsWith("Release slot")`)
	expectContains(t, tab.elementText("main"), "d-1", itoa(granted.ID), itoa(granted.Token))
	tab.checkScreen("release")
	tab.click("button.primary") // without a reason the browser sends nothing
	tab.runActions(chromedp.SendKeys(chromedp.CSS("#reason"), "stuck in the field"), chromedp.Click(chromedp.CSS("input[name=now]")))
	tab.click("button.primary")
	tab.waitForJS(`location.pathname === "/pools/p" && document.querySelector(".banner[role=status]").textContent.includes("The slot is free")`)
	tab.waitForJS(`document.querySelectorAll(".grid .cell.free").length === 3`)
	var events struct {
		Events []struct{ Kind, Actor, Device, Detail string }
	}
	b.Do("GET", "/v1/events?kind=slot.released", nil, &events)
	if len(events.Events) != 1 || events.Events[0].Device != "d-1" || !strings.Contains(events.Events[0].Detail, "stuck in the field") {
		t.Errorf("log: %+v", events)
	}
	// The page is opened for a grant that has ended in the meantime.
	status, text, _ := b.getPage(fmt.Sprintf("/pools/p/slots/%d/release?token=%d", granted.Slot, granted.Token))
	if status != 404 || !strings.Contains(text, "This grant has ended") {
		t.Errorf("a release of what is over: %d %s", status, text)
	}
}

func TestPoolIsCreatedResizedAndPaused(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	tab := openTab(t)
	tab.open(b.URL + "/")
	tab.waitForJS(`document.querySelector(".empty h2").textContent === "No pools yet"`)
	tab.checkScreen("empty")
	tab.click(".empty a.primary")
	tab.waitForJS(`document.querySelector("#name") !== null`)
	tab.runActions(chromedp.SendKeys(chromedp.CSS("#name"), "ar:330100"))
	tab.click("button.primary")
	tab.waitForJS(`location.pathname.startsWith("/pools/ar") && document.querySelectorAll(".grid .cell.free").length === 60`)
	// Another operator changes the capacity of the pool. The open page shows the new capacity.
	b.Do("PATCH", "/v1/pools/ar:330100", map[string]any{"capacity": 30}, nil)
	tab.waitForJS(`document.querySelectorAll(".grid .cell.free").length === 30`)
	b.Do("PATCH", "/v1/pools/ar:330100", map[string]any{"capacity": 70}, nil)
	tab.waitForJS(`document.querySelectorAll(".grid .cell.free").length === 70`)
	tab.open(b.URL + "/pools/ar:330100/pause")
	tab.runActions(chromedp.SendKeys(chromedp.CSS("#reason"), "maintenance"))
	tab.click("button.primary")
	tab.waitForJS(`document.querySelector("#pool-head .note").textContent.includes("maintenance")`)
	b.Do("POST", "/v1/pools/ar:330100/resume", nil, nil)
	tab.waitForJS(`document.querySelector("#pool-head .note") === null`)

	for _, bad := range []url.Values{
		{"name": {"ar:330100"}, "capacity": {"1"}, "lease": {"5m"}}, // a pool of this name exists: it is not replaced
		{"name": {"x y"}, "capacity": {"1"}, "lease": {"5m"}},
		{"name": {"x"}, "capacity": {"1e9"}, "lease": {"5m"}},
		{"name": {"x"}, "capacity": {"1"}, "lease": {"soon"}},
		{"name": {".."}, "capacity": {"1"}, "lease": {"5m"}},
	} {
		if status, text, _ := b.postForm("/new-pool", bad, nil); status < 400 || status >= 500 {
			t.Errorf("%v: %d %s", bad, status, text)
		}
	}
}

func TestFewPoolsAreCardsAndLargeOnesAreWhole(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	for i := range 16 {
		b.createPool(fmt.Sprintf("p-%02d", i), 60)
	}
	status, text, _ := b.getPage("/")
	if n := strings.Count(text, `<article class="card"`); status != 200 || n != 16 {
		t.Fatalf("%d: %d cards", status, n)
	}
	b.Do("PUT", "/v1/pools/large", map[string]any{"capacity": 10_000}, nil)
	if _, text, _ := b.getPage("/pools/large"); strings.Count(text, `<li id="slot-`) != 10_000 {
		t.Errorf("a pool of 10,000 shows %d slots", strings.Count(text, `<li id="slot-`))
	}
}
