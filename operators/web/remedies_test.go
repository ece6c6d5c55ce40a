package web_test

import (
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/operators/web"
)

// TestEveryActionHasAPage checks the table of reasons why tasks wait: each action in it has a form or a page that exists. The registration of a
// device is an exception, because an unknown device has no page.
func TestEveryActionHasAPage(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	for _, a := range decision.Actions() {
		way, is := web.FindRemedyRequest(a.Act, a.Subject)
		if a.Act == decision.ActRegister {
			continue
		}
		if !is {
			t.Errorf("%s of a %s: no page does it", a.Act, a.Subject)
			continue
		}
		if !b.web.HasRoute(way.Method, way.Path) {
			t.Errorf("%s of a %s: there is no %s %s", a.Act, a.Subject, way.Method, way.Path)
		}
	}
}

// createWaitingTasks creates one waiting task for each reason that a page can remove. It returns the tasks by the
// codes of the reasons.
func createWaitingTasks(b *testReplica) (tasks map[string]int64) {
	b.Helper()
	shut, always := closedWindows(), []map[string]any{{"cron": "0 * * * *", "duration": "2h"}}
	slow := []map[string]any{{"name": "sparing", "per": "pool", "algorithm": "fixed", "max": 1, "per_ms": 3_600_000}}
	for name, more := range map[string]map[string]any{
		"full": {}, "paused": {}, "shut": {"windows": shut}, "slow": {"capacity": 3, "lease_ms": 60_000, "windows": always, "limits": slow},
	} {
		b.Do("PUT", "/v1/pools/"+name, merged(map[string]any{"capacity": 1}, more), nil)
	}
	tasks = map[string]int64{}
	for i, c := range []struct {
		device, pool, code string
		more               map[string]any
	}{
		{"h-1", "full", "", nil},
		{"d-full", "full", "pool_full", nil},
		{"h-2", "slow", "", nil},
		{"d-slow", "slow", "limited", nil},
		{"d-shut", "shut", "pool_window", nil},
		{"d-later", "full", "batch_window", map[string]any{"windows": shut}},
		{"d-blocked", "full", "device_blocked", nil},
		{"d-held", "full", "batch_paused", nil},
		{"d-paused", "paused", "pool_paused", nil},
	} {
		b.sendReport(c.device, map[string]any{"accept": false})
		b.Do("POST", "/v1/batches", merged(map[string]any{"pool": c.pool, "devices": []string{c.device}}, c.more), nil)
		if tasks[c.code] = int64(i + 1); c.code == "" {
			b.ReportUntilGranted(c.device)
		}
	}
	b.Do("POST", "/v1/devices/d-blocked/block", nil, nil)
	b.Do("POST", "/v1/batches/8/pause", map[string]any{}, nil)
	b.Do("POST", "/v1/pools/paused/pause", map[string]any{"reason": "it smokes"}, nil)
	return tasks
}

func merged(into, more map[string]any) map[string]any {
	maps.Copy(into, more)
	return into
}

// pressButton sends the form of the button with this label on the page. It returns the address to which the
// response redirects.
func (b *testReplica) pressButton(page, label string, cookies ...*http.Cookie) (location string) {
	b.Helper()
	_, text, _ := b.getPage(page, cookies...)
	m := regexp.MustCompile(`<form method="post" action="([^"]+)"><input type="hidden" name="back" value="([^"]+)"><button>` + regexp.QuoteMeta(label) + `</button>`).FindStringSubmatch(text)
	if m == nil {
		b.Fatalf("%s has no button %q: %s", page, label, text)
	}
	status, answer, _ := b.postForm(html.UnescapeString(m[1]), url.Values{"back": {html.UnescapeString(m[2])}}, nil, cookies...)
	if status != http.StatusSeeOther {
		b.Fatalf("%s on %s: %d %s", label, page, status, problemText(answer))
	}
	return locationHeader(answer)
}

// locationHeader returns the header Location in the text that postForm returned.
func locationHeader(answer string) string {
	line, _, _ := strings.Cut(answer, "\n")
	return strings.TrimPrefix(line, "Location: ")
}

func (b *testReplica) waitReasonCodes(task int64) (codes []string) {
	b.Helper()
	var why struct{ Reasons []struct{ Code string } }
	b.Do("GET", fmt.Sprintf("/v1/tasks/%d/why", task), nil, &why)
	for _, r := range why.Reasons {
		codes = append(codes, r.Code)
	}
	return codes
}

// remedyCases returns, for the code of each reason, the label of the button, the command and the lowest role that
// is sufficient.
func remedyCases() map[string]struct{ label, command, role string } {
	return map[string]struct{ label, command, role string }{
		"device_blocked": {"Unblock d-blocked", "dispatcher devices unblock d-blocked", "operator"},
		"pool_paused":    {"Resume paused", "dispatcher pools resume paused", "admin"},
		"batch_paused":   {"Resume batch 8", "dispatcher batches resume 8", "operator"},
		"pool_full":      {"Raise the capacity of full…", "dispatcher pools set full --capacity N", "admin"},
		"pool_window":    {"Edit the windows of shut…", "dispatcher pools set shut --window W", "admin"},
		"batch_window":   {"Edit the windows of batch 6…", "dispatcher batches set 6 --window W", "operator"},
		"limited":        {"Edit the limits of slow…", "dispatcher pools set slow --limits @FILE", "admin"},
	}
}

// TestATaskOffersItsRemedy checks the page of a waiting task. For each reason it shows the command to all visitors,
// and the button only to visitors whose role is sufficient.
func TestATaskOffersItsRemedy(t *testing.T) {
	t.Parallel()
	b := startSignedOut(t)
	tasks := createWaitingTasks(b)
	who := map[string]*http.Cookie{"admin": b.signIn(adminToken)}
	for _, role := range []string{"viewer", "operator"} {
		secret, _ := b.createToken(role)
		who[role] = b.signIn(secret)
	}
	for code, c := range remedyCases() {
		if got := b.waitReasonCodes(tasks[code]); !slices.Contains(got, code) {
			t.Errorf("task %d waits for %q, want %s", tasks[code], got, code)
		}
		for role, cookie := range who {
			_, text, _ := b.getPage(fmt.Sprintf("/tasks/%d", tasks[code]), cookie)
			may := role == "admin" || role == c.role
			if !strings.Contains(text, "<code>"+c.command+"</code> <button type=\"button\" class=\"copy script\"") {
				t.Errorf("%s: a %s does not see the command %s: %s", code, role, c.command, text)
			}
			if offered := strings.Contains(text, ">"+c.label+"<"); offered != may {
				t.Errorf("%s: a %s is offered %q: %t", code, role, c.label, offered)
			}
			if role == "viewer" && strings.Contains(text, `name="back"`) {
				t.Errorf("%s: a viewer is offered a form", code)
			}
		}
	}
}

// TestAButtonRemedies checks the button of a remedy: it carries out its action and leads back to the page of the
// task.
func TestAButtonRemedies(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	tasks := createWaitingTasks(b)
	for _, code := range []string{"device_blocked", "pool_paused", "batch_paused"} {
		page := fmt.Sprintf("/tasks/%d", tasks[code])
		to := b.pressButton(page, remedyCases()[code].label)
		if !strings.HasPrefix(to, page+"?done=") {
			t.Errorf("%s leads to %q", code, to)
		}
		if got := b.waitReasonCodes(tasks[code]); slices.Contains(got, code) {
			t.Errorf("after that task %d waits for %q", tasks[code], got)
		}
	}
}

// TestALinkRemedies checks the link of a remedy: it leads to the form with the setting. The form changes only this
// setting and leads back to the task.
func TestALinkRemedies(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	tasks := createWaitingTasks(b)
	var before, after map[string]any
	b.Do("GET", "/v1/pools/slow", nil, &before)
	for code, c := range map[string]struct {
		at   string
		form url.Values
	}{
		"pool_full":    {"/pools/full/edit", formValues("capacity", "2", "lease", "5m")},
		"pool_window":  {"/pools/shut/edit", formValues("capacity", "1", "lease", "5m", "windows", "")},
		"batch_window": {"/batches/6/edit", formValues("windows", "")},
		"limited":      {"/pools/slow/edit", formValues("capacity", "3", "lease", "1m", "limit.name", "")},
	} {
		page := fmt.Sprintf("/tasks/%d", tasks[code])
		_, text, _ := b.getPage(page)
		m := regexp.MustCompile(`<a class="button" href="(` + c.at + `[^"#]*)#\w+">` + remedyCases()[code].label + `</a>`).FindStringSubmatch(text)
		if m == nil {
			t.Errorf("%s: no link to %s in %s", code, c.at, text)
			continue
		}
		form := html.UnescapeString(m[1])
		_, text, _ = b.getPage(form)
		expectContains(t, text, `href="`+page+`"`)
		status, answer, _ := b.postForm(form, c.form, nil)
		if to := locationHeader(answer); status != http.StatusSeeOther || !strings.HasPrefix(to, page+"?done=") {
			t.Errorf("%s: %d leads to %q: %s", code, status, to, problemText(answer))
		}
		if got := b.waitReasonCodes(tasks[code]); slices.Contains(got, code) {
			t.Errorf("after that task %d waits for %q", tasks[code], got)
		}
	}
	b.Do("GET", "/v1/pools/slow", nil, &after)
	for _, field := range []string{"capacity", "lease_ms", "windows"} {
		if was, is := fmt.Sprint(before[field]), fmt.Sprint(after[field]); was != is {
			t.Errorf("%s was %s, and is %s", field, was, is)
		}
	}
}

// TestTheBarOffersWhatHelpsAll checks the bar of waiting tasks, which is divided by reason. Each part offers only
// remedies that help all of its tasks. The list offers the remedies for single tasks.
func TestTheBarOffersWhatHelpsAll(t *testing.T) {
	t.Parallel()
	b := startSignedOut(t)
	createWaitingTasks(b)
	admin := b.signIn(adminToken)
	secret, _ := b.createToken("viewer")
	viewer := b.signIn(secret)
	for page, label := range map[string]string{
		"/pools/paused": "Resume paused", "/pools/shut": "Edit the windows of shut…", "/pools/full": "Raise the capacity of full…", "/batches/8": "Resume batch 8",
		"/pools/slow": "Edit the limits of slow…", "/pools/full/waiting?code=device_blocked": "Unblock d-blocked",
	} {
		if _, text, _ := b.getPage(page, admin); !strings.Contains(text, ">"+label+"<") {
			t.Errorf("%s does not offer %q: %s", page, label, text)
		}
		if _, text, _ := b.getPage(page, viewer); strings.Contains(text, ">"+label+"<") || strings.Contains(text, `name="back"`) || !strings.Contains(text, "<code>dispatcher ") {
			t.Errorf("%s for a viewer: %s", page, text)
		}
	}
	list := "/pools/full/waiting?code=batch_paused"
	if to := b.pressButton(list, "Resume batch 8", admin); !strings.HasPrefix(to, list+"&done=") {
		t.Errorf("from the list it leads to %q", to)
	}
	b.sendReport("d-9", map[string]any{"accept": false})
	b.Do("POST", "/v1/devices/d-9/block", nil, nil) // with two devices, a remedy for one of them does not help all tasks
	b.Do("POST", "/v1/batches", map[string]any{"pool": "full", "devices": []string{"d-9"}}, nil)
	if _, text, _ := b.getPage("/pools/full", admin); strings.Contains(text, "Unblock d-") {
		t.Errorf("the bar offers to unblock one of two devices: %s", text)
	}
	_, text, _ := b.getPage("/pools/full/waiting?code=device_blocked", admin)
	expectContains(t, text, ">Unblock d-blocked<", ">Unblock d-9<")
}

// TestAFormLeadsToNoOtherSite checks the address to which a form leads back: only pages of this dashboard are
// allowed. With any other address, the form changes nothing.
func TestAFormLeadsToNoOtherSite(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.sendReport("d-1", map[string]any{"accept": false})
	b.Do("POST", "/v1/devices/d-1/block", nil, nil)
	for _, back := range []string{
		"https://example.org/", "//example.org", `/\example.org`, "/\t/example.org", "tasks/1", "javascript:alert(1)", "/nowhere", "/v1/pools", "/tasks/../nowhere", "/%2f/example.org",
	} {
		status, text, _ := b.postForm("/devices/d-1/unblock", url.Values{"back": {back}}, nil)
		if status != http.StatusUnprocessableEntity || !strings.Contains(text, "not a page of this dashboard") {
			t.Errorf("%q: %d %s", back, status, problemText(text))
		}
	}
	var device struct{ Blocked bool }
	if b.Do("GET", "/v1/devices/d-1", nil, &device); !device.Blocked {
		t.Error("it was unblocked all the same")
	}
	if _, text, _ := b.postForm("/devices/d-1/unblock", url.Values{"back": {"/tasks?device=d-1"}}, nil); locationHeader(text) != "/tasks?device=d-1&done=unblocked" {
		t.Errorf("it leads to %q", locationHeader(text))
	}
}

// In a browser, an operator goes from the page of a task that waits in a full pool to the input of the capacity, which has the focus, and
// back.
func TestRaisingTheCapacityInABrowser(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	page := fmt.Sprintf("/tasks/%d", createWaitingTasks(b)["pool_full"])
	tab := openTab(t)
	tab.open(b.URL + page)
	tab.click(`.why a.button`)
	tab.waitForJS(`location.pathname === "/pools/full/edit" && document.activeElement.name === "capacity"`)
	tab.setInput(`[name="capacity"]`, "9")
	tab.click(`form.fields button.primary`)
	tab.waitForJS(`location.pathname === "` + page + `" && document.body.textContent.includes("The pool was changed")`)
	var pool struct{ Capacity int }
	if b.Do("GET", "/v1/pools/full", nil, &pool); pool.Capacity != 9 {
		t.Errorf("the capacity is %d", pool.Capacity)
	}
	tab.open(b.URL + "/pools/paused")
	tab.click(`#waiting .remedy form button`)
	tab.waitForJS(`location.pathname === "/pools/paused" && document.body.textContent.includes("Resumed")`)
}
