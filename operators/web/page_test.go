package web_test

import (
	"strings"
	"testing"
)

// The theme is that of the system until another is chosen, and stays chosen.
func TestTheThemeIsKept(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	tab := browse(t)
	background := `getComputedStyle(document.body).backgroundColor`
	tab.open(b.url + "/devices")
	tab.look(look{"dark", "dark", 1440, 1000, ""})
	dark := ask[string](tab, background)
	tab.click("#theme")
	tab.until(`document.getElementById("theme").textContent === "Theme: light" && ` + background + ` !== "` + dark + `"`)
	light := ask[string](tab, background)
	tab.open(b.url + "/batches")
	tab.until(background + ` === "` + light + `" && document.getElementById("theme").textContent === "Theme: light"`)
	tab.click("#theme")
	tab.click("#theme")
	tab.until(background + ` === "` + dark + `" && document.getElementById("theme").textContent === "Theme: system"`)
}

// Exact times are in the zone of the reader, and ids can be copied.
func TestTimesAreTheReadersAndIdsAreCopied(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.report("d-1", map[string]any{"accept": false})
	tab := browse(t)
	tab.open(b.url + "/devices/d-1")
	tab.point("main time[datetime]")
	tab.until(`document.querySelector("main time[datetime]").title.includes(" · ")`)
	if title := ask[string](tab, `document.querySelector("main time[datetime]").title`); !strings.HasSuffix(title, " UTC") {
		t.Errorf("the title is %q", title)
	}
	ask[bool](tab, `(() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; return true; })()`) // nobody may read that of the browser
	tab.click("h1 button.copy")
	tab.until(`document.querySelector("h1 button.copy").textContent === "Copied" && window.copied === "d-1"`)
	tab.until(`document.querySelector("h1 button.copy").textContent === "Copy"`)
}
