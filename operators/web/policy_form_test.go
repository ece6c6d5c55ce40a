package web_test

import (
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/operators"
)

// policyInputNames returns the names of the inputs that one row of the form has for a policy.
func policyInputNames() []string {
	return []string{"name", "per", "algorithm", "rate", "period", "timezone", "on_error", "on_limited", "reveal", "trust_device"}
}

// formValues returns a form with these inputs: pairs of name and value.
func formValues(pairs ...string) url.Values {
	form := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		form.Add(pairs[i], pairs[i+1])
	}
	return form
}

// setInput replaces the value of the input that the selector finds. It waits until the page has this input.
func (b *tab) setInput(selector, text string) {
	b.Helper()
	b.waitForJS(fmt.Sprintf(`document.querySelector(%q)`, selector))
	evalJS[bool](b, fmt.Sprintf(`(() => { document.querySelector(%q).value = %q; return true; })()`, selector, text))
}

// TestPoolSettingsAreAForm checks the form of a pool's settings: a policy of each algorithm, windows, capacity and
// lease can be entered, and afterwards the form shows them.
func TestPoolSettingsAreAForm(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3)
	tab := openTab(t)
	tab.open(b.URL + "/pools/p/edit")
	tab.setInput(`[name="capacity"]`, "7")
	tab.setInput(`[name="lease"]`, "90s")
	tab.setInput(`[name="sleep"]`, "20m")
	tab.setInput(`[name="windows"]`, "0 1 * * * 4h Asia/Shanghai\n30 2 * * 6 90m")
	tab.click(`button[data-add]`)
	tab.click(`button[data-add]`)
	for i, row := range [][]string{
		{"a", "tags.account", "sliding", "1/1m 10/24h", "", "", "", "drop", "", ""},
		{"b", "attributes.sim", "fixed", "5/1h", "", "", "open", "", "", "true"},
		{"c", "pool", "calendar", "1000", "month", "Asia/Shanghai", "", "", "", ""},
		{"d", "", "duplicate", "2/1m", "", "", "", "drop", "true", ""},
	} {
		for n, field := range policyInputNames() {
			evalJS[bool](tab, fmt.Sprintf(`(() => { document.querySelectorAll('[name="limit.%s"]')[%d].value = %q; return true; })()`, field, i, row[n]))
		}
	}
	tab.click(`form.fields button.primary`)
	tab.waitForJS(`location.pathname === "/pools/p"`)
	var pool map[string]any
	b.Do("GET", "/v1/pools/p", nil, &pool)
	said, _ := json.Marshal([]any{pool["capacity"], pool["lease_ms"], pool["longest_sleep_ms"], pool["windows"], pool["limits"]})
	const want = `[7,90000,1200000,[{"cron":"0 1 * * *","duration":"4h","timezone":"Asia/Shanghai"},{"cron":"30 2 * * 6","duration":"90m","timezone":"UTC"}],` +
		`[{"algorithm":"sliding","name":"a","on_limited":"drop","per":"tags.account","windows":[{"max":1,"per_ms":60000},{"max":10,"per_ms":86400000}]},` +
		`{"algorithm":"fixed","max":5,"name":"b","on_error":"open","per":"attributes.sim","per_ms":3600000,"trust_device":true},` +
		`{"algorithm":"calendar","max":1000,"name":"c","per":"pool","period":"month","timezone":"Asia/Shanghai"},` +
		`{"algorithm":"duplicate","max":2,"name":"d","on_limited":"drop","per_ms":60000,"reveal":true}]]`
	if string(said) != want {
		t.Errorf("the pool is\n%s, want\n%s", said, want)
	}
	tab.open(b.URL + "/pools/p/edit")
	if shown := evalJS[string](tab, `[...document.querySelectorAll('[name="limit.rate"]')].map((i) => i.value).join("; ")`); shown != "1/1m 10/24h; 5/1h; 1000; 2/1m; ; " {
		t.Errorf("the form shows %q", shown)
	}
	tab.click(`form.fields button.primary`) // the form is sent unchanged and changes nothing
	tab.waitForJS(`location.pathname === "/pools/p"`)
	b.Do("GET", "/v1/pools/p", nil, &pool)
	if again, _ := json.Marshal([]any{pool["capacity"], pool["lease_ms"], pool["longest_sleep_ms"], pool["windows"], pool["limits"]}); string(again) != want {
		t.Errorf("sent as it was shown it is\n%s", again)
	}
}

// TestWrongRowsAreRefused checks a form with a wrong row: the error names this row, and nothing is changed.
func TestWrongRowsAreRefused(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3)
	for rate, want := range map[string]string{"many": "Limit 1: at most", "1/1m 2": "Limit 1: at most", "0/1m": "Limit 1, windows"} {
		status, text, _ := b.postForm("/pools/p/edit", formValues("capacity", "9", "lease", "5m", "limit.name", "a", "limit.algorithm", "sliding", "limit.rate", rate), nil)
		if status < 400 || status >= 500 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", rate, status, problemText(text))
		}
	}
	if status, text, _ := b.postForm("/pools/p/edit", formValues("capacity", "9", "lease", "5m", "limit.name", "", "limit.per", "device"), nil); status < 400 || !strings.Contains(text, "a name is required") {
		t.Errorf("without a name: %d %s", status, problemText(text))
	}
	var pool struct{ Capacity int }
	if b.Do("GET", "/v1/pools/p", nil, &pool); pool.Capacity != 3 {
		t.Errorf("the capacity is %d", pool.Capacity)
	}
}

func TestProfilesAreAForm(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	form := formValues("name", "solar", "limit.name", "sparing", "limit.per", "device", "limit.algorithm", "calendar", "limit.rate", "10", "limit.period", "day")
	if status, text, _ := b.postForm("/new-profile", form, nil); status != http.StatusSeeOther {
		t.Fatalf("%d %s", status, problemText(text))
	}
	if status, _, _ := b.postForm("/new-profile", form, nil); status != http.StatusConflict {
		t.Errorf("a second one of that name: %d", status)
	}
	_, text, _ := b.getPage("/profiles")
	expectContains(t, text, `href="/profiles/solar"`, "sparing: 10 a day per device")
	form.Set("limit.rate", "12")
	if status, text, _ := b.postForm("/profiles/solar", form, nil); status != http.StatusSeeOther {
		t.Fatalf("%d %s", status, problemText(text))
	}
	_, text, _ = b.getPage("/profiles/solar")
	expectContains(t, text, `name="limit.rate" value="12"`)
	shown := readFormInputs(text)
	shown.Del("metadata_only") // an empty checkbox is not sent
	var profile operators.Profile
	b.Do("GET", "/v1/profiles/solar", nil, &profile)
	profile.MetadataOnly = true
	b.Do("PUT", "/v1/profiles/solar", profile, nil)
	isMetadataOnly := func() bool {
		t.Helper()
		var profile operators.Profile
		b.Do("GET", "/v1/profiles/solar", nil, &profile)
		return profile.MetadataOnly && len(profile.Limits) == 1
	}
	if status, text, _ := b.postForm("/profiles/solar", shown, nil); status != http.StatusSeeOther || !isMetadataOnly() {
		t.Errorf("a form undid a change that it did not show: %d %s", status, problemText(text))
	}
	shown.Set("metadata_only", "true")
	if status, text, _ := b.postForm("/profiles/solar", shown, nil); status != http.StatusSeeOther || !isMetadataOnly() {
		t.Errorf("%d %s", status, problemText(text))
	}
	_, text, _ = b.getPage("/profiles/solar")
	expectContains(t, text, `name="metadata_only" value="true" checked`)

	shown = readFormInputs(text)
	shown.Del("metadata_only")
	shown.Set("limit.rate", "many")
	if status, text, _ := b.postForm("/profiles/solar", shown, nil); status < 400 || strings.Contains(text, `name="metadata_only" value="true" checked`) {
		t.Errorf("a refused form has the box chosen again: %d %s", status, problemText(text))
	}
}

// TestFormsChangeWhatWasEntered checks a form that was shown before others made changes: it sends only what was
// entered, so it does not undo these changes.
func TestFormsChangeWhatWasEntered(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3, "d-1")
	_, pool, _ := b.getPage("/pools/p/edit")
	_, batch, _ := b.getPage("/batches/1/edit")
	b.Do("PATCH", "/v1/pools/p", map[string]any{"lease_ms": 77_000, "windows": []any{map[string]any{"cron": "0 1 * * *", "duration": "4h"}}}, nil)
	b.Do("PATCH", "/v1/batches/1", map[string]any{"weight": 5}, nil)
	send := func(path, page, input, text string) {
		form := readFormInputs(page)
		form.Set(input, text)
		if status, said, _ := b.postForm(path, form, nil); status != http.StatusSeeOther {
			t.Errorf("%s: %d %s", path, status, problemText(said))
		}
	}
	send("/pools/p/edit", pool, "capacity", "9")
	send("/batches/1/edit", batch, "priority", "4")
	var p struct {
		Capacity int
		Lease    int64 `json:"lease_ms"`
		Windows  []any
	}
	if b.Do("GET", "/v1/pools/p", nil, &p); p.Capacity != 9 || p.Lease != 77_000 || len(p.Windows) != 1 {
		t.Errorf("the pool is %+v", p)
	}
	var one struct{ Weight, Priority int }
	if b.Do("GET", "/v1/batches/1", nil, &one); one.Weight != 5 || one.Priority != 4 {
		t.Errorf("the batch is %+v", one)
	}
}

// readFormInputs returns the inputs of the form on a page as a browser would send them.
func readFormInputs(page string) url.Values {
	form := url.Values{}
	for _, m := range regexp.MustCompile(`<input[^>]* name="([^"]+)"[^>]*>`).FindAllStringSubmatch(page, -1) {
		_, value, _ := strings.Cut(m[0], ` value="`)
		value, _, _ = strings.Cut(value, `"`)
		form.Add(m[1], html.UnescapeString(value))
	}
	for _, m := range regexp.MustCompile(`(?s)<textarea[^>]* name="([^"]+)"[^>]*>(.*?)</textarea>`).FindAllStringSubmatch(page, -1) {
		form.Add(m[1], html.UnescapeString(m[2]))
	}
	for _, m := range regexp.MustCompile(`(?s)<select[^>]* name="([^"]+)"[^>]*>(.*?)</select>`).FindAllStringSubmatch(page, -1) {
		chosen := regexp.MustCompile(`<option[^>]* selected`).FindString(m[2])
		_, value, _ := strings.Cut(chosen, `value="`)
		value, _, _ = strings.Cut(value, `"`)
		form.Add(m[1], value)
	}
	return form
}
