package web_test

import (
	"fmt"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// TestTimesAreTheReaders checks the times of a chart, of its cursor and in texts: they are in the time zone of the
// reader, and the page names this zone.
func TestTimesAreTheReaders(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3, "d-1")
	b.ReportUntilGranted("d-1")
	tab := openTab(t)
	_, err := chromedp.Call(tab.ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Kolkata"})
	must.Succeed(t, err)
	tab.open(b.URL + "/pools/p?range=24h")
	tab.waitForJS(`document.getElementById("pulse").textContent === "live"`)
	const clocks = `[...document.querySelectorAll("#lanes .clocks text")]`
	tab.waitForJS(clocks + `.length > 3 && ` + clocks + `.every((tick) => tick.textContent.endsWith(":30"))`) // the zone is 5.5 hours from UTC
	expectContains(t, tab.elementText("#lanes .zone"), "times in Asia/")
	tab.runActions(chromedp.SendKeys(chromedp.CSS(".plot"), kb.ArrowLeft))
	tab.waitForJS(`document.getElementById("readout").textContent.includes("GMT+5:30")`)
	_, text, _ := b.getPage("/pools/p?range=24h")
	expectContains(t, text, "times in UTC", `y="11" data-at="`)
	tab.open(b.URL + "/tasks/1")
	tab.waitForJS(`document.querySelector(".why time.at").textContent.includes("GMT+5:30")`)
	_, text, _ = b.getPage("/tasks/1")
	expectContains(t, text, `Z</time>, attempt 1 of 3`)
}

// TestMidnightIsTheBeginningOfADay checks that midnight is shown as the beginning of a day (00:00) and not as the
// end of one, both with a date and without.
func TestMidnightIsTheBeginningOfADay(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3)
	tab := openTab(t)
	tab.open(b.URL + "/pools/p?range=24h")
	tab.waitForJS(`document.getElementById("pulse").textContent === "live"`)
	for form, text := range []string{"/, 00:00$/", "/^00:00$/", "/^00:00:00$/"} {
		tab.waitForJS(fmt.Sprintf(`(() => {
			const tick = document.querySelector("#lanes .clocks text[data-at]");
			Object.assign(tick.dataset, { at: new Date(2026, 2, 4).getTime(), form: %d });
			return %s.test(tick.textContent);
		})()`, form, text))
	}
}
