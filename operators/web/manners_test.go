package web_test

import (
	"fmt"
	"testing"

	rig "github.com/fleetslots/dispatcher/internal/test/rig"
)

// findQuantitiesJS finds the numbers on a page that are quantities. It leaves out numbers that are names (such as
// ids) and numbers that are settings.
const findQuantitiesJS = `[...document.querySelectorAll("main b, main dd, main td.n, main .pills b, main .figure, main dd a, main td.n a")].filter(e =>
	/^[\d\s\u2009.,+/]+$/.test(e.textContent.trim()) && !e.querySelector("b, a, dd") && !e.closest(".cell, pre") &&
	!/^(number|batch|task|token|slot|attempt|priority|weight)$/i.test((e.closest("dl > div")?.querySelector("dt") || e.closest("table")?.querySelectorAll("thead th")[e.closest("td")?.cellIndex])?.textContent))`

// hasDescriptionJS reports whether a number has a description. The description is a title of the number, of an
// element around it, or of the head of its column.
const hasDescriptionJS = `(e => {
	if (e.closest("[title]")) return true;
	const cell = e.closest("td");
	return !!cell && !!cell.closest("table").querySelectorAll("thead th")[cell.cellIndex]?.title;
})`

// TestEveryNumberIsDefinedAndLeadsOn checks every number on the pages: it has a description that is shown at the
// pointer, and it links to the things that it counts.
func TestEveryNumberIsDefinedAndLeadsOn(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	names := deviceIDs(9)
	b.createPool("p", 4, names...)
	var last rig.Grant
	for i := range 6 {
		last = b.ReportUntilGranted(names[i])
		if i < 3 {
			b.sendReport(names[i], map[string]any{"accept": false, "results": []map[string]any{{
				"task": last.ID, "token": last.Token, "status": []string{"succeeded", "rejected", "failed"}[i], "error": "no route", "output": map[string]any{"down": 90 + i, "ok": i == 0},
			}}})
		}
	}
	b.createUsedLimitSet("1")
	tab := openTab(t)
	for path, least := range map[string]int{
		"/": 4, "/?sort=held": 6, "/find?q=d-": 0, "/pools/p": 12, "/pools/p/waiting": 2, "/batches/1/failures?by=tags.site": 1, "/batches/1/waiting?code=device_unknown": 2, "/pools/p?range=7d": 10, "/pools/p/slots/0": 0, "/batches": 2, "/batches/1": 15, "/batches/1?field=ok&tag=site": 12, "/batches/1/edit": 0, "/tasks": 8, "/tasks?state=failed": 8, "/tasks/2": 0, fmt.Sprintf("/tasks/%d", last.ID): 0,
		"/devices": 0, "/devices?show=silent": 0, "/devices/d-1": 0, "/activity": 0, "/system": 1, "/cancel-tasks?batch=1": 0, "/limits": 0, "/limits/sms": 2,
	} {
		tab.open(b.URL + path)
		tab.waitForJS(`document.querySelector("h1").textContent !== ""`)
		if n := evalJS[int](tab, findQuantitiesJS+".length"); n < least {
			t.Errorf("%s: %d numbers found, want %d: %s", path, n, least, tab.elementText("main"))
		}
		if bare := evalJS[string](tab, findQuantitiesJS+`.filter(e => !`+hasDescriptionJS+`(e)).map(e => e.outerHTML + " in " + (e.closest("dl > div, tr, li, p") || e).textContent.trim().slice(0, 80)).join("\n")`); bare != "" {
			t.Errorf("%s: nothing says what these are:\n%s", path, bare)
		}
		if ends := evalJS[string](tab, findQuantitiesJS+`.filter(e => e.textContent.trim() !== "0" && !e.closest("a") && !e.querySelector("a") && !e.closest("[data-end]")).
			map(e => e.outerHTML + " in " + (e.closest("dl > div, tr, li, p") || e).textContent.trim().slice(0, 80)).join("\n")`); ends != "" {
			t.Errorf("%s: these lead nowhere:\n%s", path, ends)
		}
		if times := evalJS[string](tab, `[...document.querySelectorAll("time")].filter(e => !/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ$/.test(e.title)).map(e => e.outerHTML).join()`); times != "" {
			t.Errorf("%s: no exact time: %s", path, times)
		}
	}
}
