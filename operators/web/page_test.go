package web_test

import (
	"strings"
	"testing"
)

// TestTheThemeIsKept checks the theme of the pages (light or dark): it is the theme of the system until the visitor
// chooses another one, which is then kept.
func TestTheThemeIsKept(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	tab := openTab(t)
	background := `getComputedStyle(document.body).backgroundColor`
	tab.open(b.URL + "/devices")
	tab.applyStyle(screenStyle{"dark", "dark", 1440, 1000, ""})
	dark := evalJS[string](tab, background)
	tab.click("#theme")
	tab.waitForJS(`document.getElementById("theme").textContent === "Theme: light" && ` + background + ` !== "` + dark + `"`)
	light := evalJS[string](tab, background)
	tab.open(b.URL + "/batches")
	tab.waitForJS(background + ` === "` + light + `" && document.getElementById("theme").textContent === "Theme: light"`)
	tab.click("#theme")
	tab.click("#theme")
	tab.waitForJS(background + ` === "` + dark + `" && document.getElementById("theme").textContent === "Theme: system"`)
}

// TestTimesAreTheReadersAndIdsAreCopied checks a page: exact times are in the time zone of the reader, and ids can
// be copied.
func TestTimesAreTheReadersAndIdsAreCopied(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.sendReport("d-1", map[string]any{"accept": false})
	tab := openTab(t)
	tab.open(b.URL + "/devices/d-1")
	tab.movePointer("main time[datetime]")
	tab.waitForJS(`document.querySelector("main time[datetime]").title.includes(" · ")`)
	if title := evalJS[string](tab, `document.querySelector("main time[datetime]").title`); !strings.HasSuffix(title, "Z") {
		t.Errorf("the title is %q", title)
	}
	evalJS[bool](tab, `(() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; return true; })()`) // the clipboard of the browser cannot be read
	tab.click("h1 button.copy")
	tab.waitForJS(`document.querySelector("h1 button.copy").textContent === "Copied" && window.copied === "d-1"`)
	tab.waitForJS(`document.querySelector("h1 button.copy").textContent === "Copy"`)
}
