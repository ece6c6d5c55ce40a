package web_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestManyPoolsAreRows checks the first page with many pools, without its script. The pools are rows, and the pool
// with the worst trouble is first. A pool can be found by a part of its name, and a click sorts the rows.
func TestManyPoolsAreRows(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	for i := range 26 {
		b.createPool(fmt.Sprintf("p-%02d", i), 60)
	}
	b.createPool("stuck", 3, deviceIDs(4)...)
	b.ReportUntilGranted("d-0")
	b.Do("POST", "/v1/pools/stuck/pause", map[string]any{"reason": "no route"}, nil)
	_, text, _ := b.getPage("/")
	first := func(text string) string {
		found := regexp.MustCompile(`<tr id="pool-([^"]+)"`).FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("no rows: %s", text)
		}
		return found[1]
	}
	if n := strings.Count(text, `<tr id="pool-`); n != 27 || first(text) != "stuck" || strings.Contains(text, `class="card"`) {
		t.Errorf("%d rows, first %s", n, first(text))
	}
	expectContains(t, text, `<b>27</b>`, `<b>1</b> / 1563`, "paused while tasks wait", `title="By bootstrap: no route"`, `aria-sort="descending"><a href="/?sort=trouble">`)
	if _, text, _ = b.getPage("/?sort=name"); first(text) != "p-00" || !strings.Contains(text, `aria-sort="ascending"><a href="/?sort=name">`) {
		t.Errorf("by name: %s", text)
	}
	if _, text, _ = b.getPage("/?sort=held&name=P-"); first(text) != "p-00" || strings.Contains(text, "pool-stuck") {
		t.Errorf("those with p-, by what is held: %s", text)
	}
	expectContains(t, text, `name="sort" value="held"`, `value="P-"`, `href="/?name=P-&amp;sort=waiting"`)
	if _, text, _ = b.getPage("/?only_trouble=true"); strings.Count(text, `<tr id="pool-`) != 1 {
		t.Errorf("only trouble: %s", text)
	}
	if _, text, _ = b.getPage("/?name=nowhere"); !strings.Contains(text, "No pool matches") {
		t.Errorf("nothing matches: %s", text)
	}
	if status, _, _ := b.getPage("/?sort=size"); status != http.StatusUnprocessableEntity {
		t.Errorf("an unknown order: %d", status)
	}
	for i := range 100 {
		b.createPool(fmt.Sprintf("q-%03d", i), 1)
	}
	_, text, _ = b.getPage("/?sort=name")
	next := regexp.MustCompile(`rel="next" href="(/\?page=[^"]+)"`).FindStringSubmatch(text)
	if next == nil || strings.Count(text, `<tr id="pool-`) != 120 {
		t.Fatalf("the first page: %s", text)
	}
	if _, text, _ = b.getPage(strings.ReplaceAll(next[1], "&amp;", "&")); strings.Count(text, `<tr id="pool-`) != 7 || !strings.HasPrefix(first(text), "q-") {
		t.Errorf("the second page: %s", text)
	}
}

// TestRowsOfPoolsAreLive checks an open list of pools: its rows are updated, and each stays in its place.
func TestRowsOfPoolsAreLive(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	for i := range 17 {
		b.createPool(fmt.Sprintf("p-%02d", i), 2)
	}
	b.createPool("p-08", 2, deviceIDs(3)...)
	tab := openTab(t)
	tab.open(b.URL + "/")
	tab.waitForJS(`document.getElementById("pulse").textContent === "live"`)
	b.ReportUntilGranted("d-0")
	tab.waitForJS(`document.querySelector("#pool-p-08 td.n").textContent === "1" && document.querySelector("#totals").textContent.includes("1 / 34")`)
	b.Do("PATCH", "/v1/pools/p-08", map[string]any{"capacity": 0}, nil)
	tab.waitForJS(`document.querySelector("tbody tr").id === "pool-p-08" && document.querySelector("tbody tr").textContent.includes("over capacity, no slots")`)
	tab.checkScreen("pool-rows")
}

// TestTheSearchIsAKeyAway checks two keys that move the focus to the search field: Ctrl-K on every page, and / while no
// input has the focus.
func TestTheSearchIsAKeyAway(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("ar:330100", 3, "ar-7", "ar-8")
	g := b.ReportUntilGranted("ar-7")
	b.sendReport("ar-7", map[string]any{"accept": false, "results": []map[string]any{{"task": g.ID, "token": g.Token, "status": "rejected", "error": "no <route>"}}})
	b.Do("PATCH", "/v1/devices/ar-7", map[string]any{"tags": map[string]any{"site": "berlin"}}, nil)
	tab := openTab(t)
	focused := `document.activeElement === document.getElementById("find")`
	press := func(key, options string) {
		evalJS[bool](tab, fmt.Sprintf(`document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: %q, bubbles: true, cancelable: true, %s}))`, key, options))
	}
	for _, path := range []string{"/", "/batches", "/tasks", "/devices", "/activity", "/system", "/limits", "/new-pool", "/find"} {
		tab.open(b.URL + path)
		tab.waitForJS(`document.getElementById("find") !== null`)
		press("k", "")
		if evalJS[bool](tab, focused) {
			t.Errorf("%s: a plain k leads to the search", path)
		}
		press("k", "ctrlKey: true")
		tab.waitForJS(focused)
	}
	tab.open(b.URL + "/tasks")
	evalJS[string](tab, `document.querySelector("main input[name=pool]").focus(), ""`)
	press("/", "")
	if evalJS[bool](tab, focused) {
		t.Error("what is entered into a filter leads to the search")
	}
	evalJS[string](tab, `document.activeElement.blur(), ""`)
	press("/", "")
	tab.waitForJS(focused)
	tab.runActions(chromedp.SendKeys(chromedp.CSS("#find"), "ar\r"))
	tab.waitForJS(`location.pathname === "/find" && document.querySelector("main a[href='/pools/ar:330100']") && document.querySelector("main a[href='/devices/ar-7']")`)
	if got := evalJS[string](tab, `document.getElementById("find").value`); got != "ar" {
		t.Errorf("the search shows %q", got)
	}
	tab.checkScreen("found")
	for text, href := range map[string]string{
		itoa(g.ID): "/tasks/" + itoa(g.ID), "ar-7": "/devices/ar-7", "ar:330100": "/pools/ar:330100",
	} {
		_, page, _ := b.getPage("/find?q=" + text)
		if first := regexp.MustCompile(`<td class="text"><a href="([^"]+)"`).FindStringSubmatch(page); first == nil || first[1] != href {
			t.Errorf("%s: the first hit is %v, want %s", text, first, href)
		}
	}
	for text, parts := range map[string][]string{
		"site:berlin": {"Devices with this tag", `href="/devices/ar-7"`}, "no+": {"no &lt;route&gt;", `href="/tasks/` + itoa(g.ID)}, "nowhere": {"Nothing found", "/tasks?error=nowhere*"}, "": {"Find anything"},
	} {
		_, page, _ := b.getPage("/find?q=" + text)
		expectContains(t, page, parts...)
	}
}

// TestFoundPartsLeadToTheirLists checks the results of a search: if one kind has more hits than are shown, it links
// to the list with the filter.
func TestFoundPartsLeadToTheirLists(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	names := make([]string, 12)
	for i := range names {
		names[i] = fmt.Sprintf("meter-%02d", i)
		b.Do("PUT", "/v1/pools/"+names[i], map[string]any{"capacity": 1}, nil)
		b.Do("POST", "/v1/devices", map[string]any{"id": names[i], "tags": map[string]any{"site": "x"}}, nil)
		b.Do("POST", "/v1/batches", map[string]any{"name": names[i], "pool": names[i], "devices": []string{names[i]}}, nil)
	}
	_, page, _ := b.getPage("/find?q=meter")
	lists := []string{"/?name=meter", "/batches?name=meter", "/devices?part=meter"}
	for _, list := range lists {
		expectContains(t, page, `href="`+list+`"`)
		_, text, _ := b.getPage(list)
		expectContains(t, text, names...)
	}
	if n := strings.Count(page, `<td class="text"><a`); n != 30 {
		t.Errorf("%d hits, want 10 of each of three parts", n)
	}
	_, page, _ = b.getPage("/find?q=meter-07")
	for _, path := range []string{"/devices/meter-07", "/pools/meter-07"} {
		if n := strings.Count(page, `<td class="text"><a href="`+path+`"`); n != 1 {
			t.Errorf("%s is listed %d times, want once", path, n)
		}
	}
	_, page, _ = b.getPage("/find?q=site:x")
	expectContains(t, page, `href="/devices?tag=site%3Ax"`)
}
