package web_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// signIn enters the token into the sign-in page that the tab shows.
func (b *tab) signIn(token string) {
	b.Helper()
	b.waitForJS(`document.querySelector("#token") !== null`)
	b.runActions(chromedp.SendKeys(chromedp.CSS("#token"), token))
	b.click("button.primary")
}

// inputsJS evaluates to the texts of the inputs of the form of a pool, and of all its rows of policies.
const inputsJS = `[...document.querySelectorAll("[name=capacity], [name=lease], [name=windows], .rows [name='limit.name'], .rows [name='limit.per'], .rows [name='limit.algorithm']")].map((i) => i.value).join("|")`

// capacity returns the capacity of pool p.
func (b *testReplica) capacity() int {
	b.Helper()
	var shown struct{ Capacity int }
	b.Do("GET", "/v1/pools/p", nil, &shown)
	return shown.Capacity
}

// TestAFormOutlivesItsSession checks a form that is submitted after its session has ended: the visitor signs in, and the form is shown again
// with all input. Nothing is changed before the visitor submits it again.
func TestAFormOutlivesItsSession(t *testing.T) {
	t.Parallel()
	b := startSignedOut(t)
	b.createPool("p", 3)
	secret, id := b.createToken("admin")
	tab := openTab(t)
	tab.open(b.URL + "/pools/p/edit?back=%2F")
	tab.signIn(secret)
	tab.waitForJS(`location.pathname === "/pools/p/edit"`)
	tab.setInput(`[name="capacity"]`, "7")
	tab.setInput(`[name="windows"]`, "0 1 * * * 4h Asia/Shanghai\n30 2 * * 6 90m")
	tab.click(`button[data-add]`)
	evalJS[bool](tab, `(() => { document.querySelectorAll(".rows").forEach((row, i) => { for (const [name, text] of [["name", "l" + i], ["per", '"><b>'], ["algorithm", "fixed"], ["rate", "9/1h"]])
		row.querySelector("[name='limit." + name + "']").value = text; }); return true; })()`)
	entered := evalJS[string](tab, inputsJS)
	b.Do("DELETE", "/v1/tokens/"+itoa(id), nil, nil)
	tab.click(`form.fields button.primary`)
	tab.expectMessage("401")
	tab.waitForJS(`document.querySelector(".problem").textContent.includes("The session has ended. Nothing was changed. Sign in, and the form is shown again with your input.")`)
	tab.checkScreen("session-ended")
	tab.signIn("wrong")
	tab.waitForJS(`document.querySelector(".problem").textContent.includes("No operator has this token")`)
	tab.signIn(adminToken)
	tab.waitForJS(`document.querySelector("main .note").textContent.includes("Nothing was sent yet")`)
	tab.checkScreen("form-again")
	if shown := evalJS[string](tab, inputsJS); shown != entered || strings.Count(shown, "fixed") != 3 {
		t.Errorf("the form shows %q, want %q", shown, entered)
	}
	if n := b.capacity(); n != 3 {
		t.Errorf("the form was sent by itself: the capacity is %d", n)
	}
	evalJS[bool](tab, `(() => { for (const i of document.querySelectorAll("[name='limit.per']")) i.value = "device"; return true; })()`)
	tab.click(`form.fields button.primary`)
	tab.waitForJS(`location.pathname === "/" && location.search === "?done=pool-changed"`)
	if n := b.capacity(); n != 7 {
		t.Errorf("the capacity is %d", n)
	}
}

// TestWhatASignInKeeps checks which input the sign-in page keeps for a form: text, but no file and no token.
func TestWhatASignInKeeps(t *testing.T) {
	t.Parallel()
	b := startSignedOut(t)
	b.createPool("p", 3)
	form := map[string]string{"pool": "p", "devices": strings.Repeat("d-1\r\n", 20_000), "do": "create"}
	status, text, _ := b.submitBatchForm(form, "device\nsecret-7\n")
	if status != http.StatusUnauthorized || strings.Contains(text, "secret-7") {
		t.Errorf("%d, and the file is kept: %t", status, strings.Contains(text, "secret-7"))
	}
	expectContains(t, text, "A file cannot be kept: choose tasks again.", `name="kept" value="devices=d-1%0D%0Ad-1`, `enctype="multipart/form-data"`)
	form["devices"] = strings.Repeat("\u00e4", 1<<20)
	_, text, _ = b.submitBatchForm(form, "")
	expectContains(t, text, "The input is too large to be kept.")
	for path, next := range map[string]string{"/pools/p/resume": "/pools/p", "/nowhere": "/"} {
		status, text, _ := b.postForm(path, url.Values{"a": {"kept-7"}}, map[string]string{"Referer": b.URL + next})
		if status != http.StatusUnauthorized && status != http.StatusNotFound || strings.Contains(text, "kept-7") || status == http.StatusUnauthorized && !strings.Contains(text, `name="next" value="`+next+`"`) {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	kept := url.Values{"token": {"wrong"}, "next": {"//evil.example"}, "kept": {"a=1"}}
	if _, text, _ := b.postForm("/sign-in", kept, nil); strings.Contains(text, "wrong&") || strings.Contains(text, "evil") {
		t.Errorf("the page after a wrong token: %s", text)
	}
	b.Do("POST", "/v1/pools/p/pause", map[string]any{}, nil)
	admin := b.signIn(adminToken)
	for path, want := range map[string]int{"/pools/p/resume": http.StatusSeeOther, "/pools/p/edit": http.StatusOK} {
		if status, text, _ := b.postForm(path, url.Values{"kept": {"capacity=9&lease=5m&windows=%3C%2Ftextarea%3E%3Cscript%3Ealert"}, "capacity": {"9"}, "lease": {"5m"}}, nil, admin); status != want || strings.Contains(text, "<script>alert") {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	var pool struct {
		Capacity int
		Paused   bool
	}
	if b.Do("GET", "/v1/pools/p", nil, &pool); pool.Capacity != 3 || !pool.Paused {
		t.Errorf("a kept form was carried out: %+v", pool)
	}
}

// TestAConflictKeepsTheInput checks forms whose object somebody else changed after they were shown: the page says who changed what, keeps
// the input, and shows the present values of the other inputs. Submitted again, the form changes the object.
func TestAConflictKeepsTheInput(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3, "d-1")
	b.Do("PUT", "/v1/profiles/solar", map[string]any{"limits": []any{}}, nil)
	tab := openTab(t)
	tab.open(b.URL + "/pools/p/edit")
	b.Do("POST", "/v1/pools/p/pause", map[string]any{}, nil) // the form does not show it: no conflict
	tab.setInput(`[name="capacity"]`, "4")
	tab.click(`form.fields button.primary`)
	tab.waitForJS(`location.pathname === "/pools/p"`)
	tab.open(b.URL + "/pools/p/edit")
	b.Do("PATCH", "/v1/pools/p", map[string]any{"capacity": 12, "lease_ms": 600_000}, nil)
	tab.setInput(`[name="capacity"]`, "15")
	tab.click(`form.fields button.primary`)
	tab.expectMessage("409")
	tab.waitForJS(`/^bootstrap set the capacity to 12, .* ago. Nothing was changed by this form/.test(document.querySelector(".problem").textContent)`)
	tab.checkScreen("conflict")
	if shown := evalJS[string](tab, inputsJS); !strings.HasPrefix(shown, "15|10m|") || b.capacity() != 12 {
		t.Errorf("the form shows %q", shown)
	}
	tab.click(`form.fields button.primary`)
	tab.waitForJS(`location.pathname === "/pools/p"`)
	if n := b.capacity(); n != 15 {
		t.Errorf("the capacity is %d", n)
	}
	for _, one := range []struct {
		page, change string
		body         any
		selector     string
		want         string
	}{
		{"/batches/1/edit", "/v1/batches/1", map[string]any{"weight": 9}, `[name="weight"]`, "bootstrap set the weight to 9,"},
		{"/profiles/solar", "/v1/profiles/solar", map[string]any{"limits": []any{map[string]any{"name": "a", "per": "device", "algorithm": "fixed", "max": 1, "per_ms": 60_000}}}, `[name="limit.name"]`, "bootstrap changed the limits,"},
	} {
		tab.open(b.URL + one.page)
		method := "PATCH"
		if strings.Contains(one.change, "profiles") {
			method = "PUT"
		}
		b.Do(method, one.change, one.body, nil)
		tab.setInput(one.selector, "5")
		if method == "PUT" {
			tab.setInput(`[name="limit.rate"]`, "5/1h")
			tab.setInput(`[name="limit.per"]`, "device")
		}
		tab.click(`form.fields button.primary`)
		tab.waitForJS(fmt.Sprintf(`document.querySelector(".problem").textContent.startsWith(%q) && document.querySelector(%q).value === "5"`, one.want, one.selector))
		tab.click(`form.fields button.primary`)
		tab.waitForJS(`location.search === "?done=profile-changed" || location.search === "?done=batch-changed"`)
	}
}

// TestTheBackButtonAfterACount checks the browser's back button after tasks were only counted: it shows the filled form, and does not ask to
// send the form again.
func TestTheBackButtonAfterACount(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3)
	tab := openTab(t)
	tab.open(b.URL + "/new-batch?pool=p")
	tab.runActions(chromedp.SendKeys(chromedp.CSS("#devices"), "d-1 d-2"))
	tab.click("button[value=count]")
	tab.waitForJS(`document.querySelector(".note[role=status]").textContent.includes("It would create 2 tasks")`)
	tab.click("button[value=create]")
	tab.waitForJS(`location.pathname === "/batches/1"`)
	for _, step := range []string{`document.querySelector(".note[role=status]").textContent.includes("It would create 2 tasks")`, `!document.querySelector(".note[role=status]")`} {
		evalJS[bool](tab, `setTimeout(() => history.back()) > 0`)
		tab.waitForJS(step + ` && document.querySelector("#devices").value === "d-1 d-2"`)
	}
}
