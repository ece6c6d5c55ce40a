package web_test

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/internal/test/must"
	rig "github.com/fleetslots/dispatcher/internal/test/rig"
	"github.com/fleetslots/dispatcher/operators/web"
)

// endTasks lets these devices take and end their tasks in pool p. Every fourth task fails.
func (b *testReplica) endTasks(names ...string) {
	b.Helper()
	for i, name := range names {
		g := b.ReportUntilGranted(name)
		result := map[string]any{"task": g.ID, "token": g.Token, "status": "succeeded", "output": map[string]any{
			"down": 80 + i, "net": map[string]any{"rtt": i % 5}, "firmware": fmt.Sprintf("7.%d", i%3), "note": "=1+1 <b>",
		}}
		if i%4 == 3 {
			result["status"], result["error"] = "rejected", fmt.Sprintf("no route %d", i%8)
		}
		b.sendReport(name, map[string]any{"accept": false, "results": []map[string]any{result}})
	}
}

// TestABatchIsItsResults checks the results on the page of a batch: ended tasks, numbers, values, tags and a table.
func TestABatchIsItsResults(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	names := deviceIDs(40)
	b.createPool("p", 60, names...)
	_, text, _ := b.getPage("/batches/1")
	expectContains(t, text, "No task has ended yet", "0 of 40")
	b.Do("POST", "/v1/devices", map[string]any{"id": "d-3", "tags": map[string]string{"site": "berlin"}}, nil)
	b.endTasks(names[:30]...)
	b.ReportUntilGranted(names[30]) // an end is expected only if a task runs and another task can start
	b.sendReport(names[31], map[string]any{"accept": false})
	b.Await("the rate", func() bool {
		_, text, _ = b.getPage("/batches/1")
		return strings.Contains(text, `class="expected"`)
	})
	expectContains(t, text, `id="course"`, "expected to end", "<h2>down", "<dt>p50</dt><dd><b>94.5</b>", "<th scope=\"col\" class=\"n\" title=\"A field of the output\">net.rtt</th>", "=1&#43;1 &lt;b&gt;",
		`<a class="button" href="/retry-tasks?state=failed&amp;batch=1">Retry failed…</a>`, `href="/new-batch?from=1"`, `href="/batches/1/edit"`, `href="/batches/1/results.csv"`, "Failures by error", "no route 3")
	if n := strings.Count(text, `<tr id="result-`); n != 25 {
		t.Errorf("%d rows", n)
	}
	_, text, _ = b.getPage("/batches/1?field=firmware&tag=site&column=net.rtt&column=none&state=failed")
	expectContains(t, text, "<h2>firmware", `<td class="text">7.0</td>`, "By tag site", `<a href="/devices?tag=site:berlin">berlin</a></td><td class="n">1</td><td class="n">1</td>`, "without the tag",
		`?state=failed" download`, `<option selected>firmware</option>`)
	if strings.Contains(text, `>down</th>`) || strings.Count(text, `<tr id="result-`) != 7 {
		t.Error("the columns and the state are not those of the form")
	}
	const ever = `title="All tasks of the batch with this error, whatever their end time"`
	if strings.Contains(text, ever) {
		t.Error("an error of all times is told from those of a time")
	}
	_, text, _ = b.getPage("/batches/1?since=2026-01-01T00:00")
	expectContains(t, text, "no route 3", ever)
	_, text, _ = b.getPage("/batches/1?column=down")
	next := regexp.MustCompile(`<a rel="next" href="([^"]+)">Next results`).FindStringSubmatch(text)
	if next == nil {
		t.Fatal("no next results")
	}
	_, text, _ = b.getPage(strings.ReplaceAll(next[1], "&amp;", "&"))
	expectContains(t, text, `<tr id="result-26">`, `<th scope="col" class="n" title="A field of the output">down</th>`, "First results")
	if n := strings.Count(text, `<tr id="result-`); n != 5 {
		t.Errorf("%d rows", n)
	}
	status, text, _ := b.getPage("/batches/1/results.csv?state=succeeded")
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil || status != 200 || len(rows) != 24 || strings.Join(rows[0][7:], " ") != "output.down output.firmware output.net.rtt output.note output" || rows[1][10] != "'=1+1 <b>" {
		t.Errorf("%d: %q, %v", status, rows, err)
	}
	for path, want := range map[string]int{"/batches/9/results.csv": 404, "/batches/1?state=pending": 422, "/batches/1?field=" + strings.Repeat("x", 201): 422} {
		if status, _, _ := b.getPage(path); status != want {
			t.Errorf("%s: %d, want %d", path, status, want)
		}
	}
}

// TestResultsAreSummedUpOnceInAWhile checks when the summary of a batch's results is computed again: after more tasks have ended, but for a
// large open batch at most once per summaryReadEvery. The counts next to the summary must always be current.
func TestResultsAreSummedUpOnceInAWhile(t *testing.T) {
	t.Parallel()
	now := time.Now()
	b := startEmbedded(t, func(o *web.Options) { o.Now = func() time.Time { return now } })
	names := deviceIDs(2100)
	b.createPool("p", 60, names...)
	looked := func() int64 { // results that one rendering summarized
		before := b.store.summarizedResults.Load()
		b.getPage("/batches/1")
		return b.store.summarizedResults.Load() - before
	}
	for range 3 {
		b.endTasks(names[:10]...)
		if names = names[10:]; looked() < 10 {
			t.Error("others have ended, and were not summed up")
		}
		if n := looked(); n > 1 {
			t.Errorf("none has ended since, and %d results were looked at again", n)
		}
	}
	running := []rig.Grant{b.ReportUntilGranted(names[0]), b.ReportUntilGranted(names[1])}
	b.Do("POST", "/v1/tasks/cancel?batch=1", nil, nil)
	if n := looked(); n < 2000 {
		t.Errorf("%d of 2098 results were summed up", n)
	}
	b.sendReport(names[0], map[string]any{"accept": false, "results": []map[string]any{{"task": running[0].ID, "token": running[0].Token, "status": "succeeded"}}})
	if n := looked(); n > 1 {
		t.Errorf("%d results were looked at again at once", n)
	}
	_, text, _ := b.getPage("/batches/1")
	expectContains(t, text, "2099 of 2100</span> ended", "of 2099 results")
}

// TestResultsInABrowser checks in a browser the form that selects results: the selection stays while new results
// arrive.
func TestResultsInABrowser(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	names := deviceIDs(40)
	b.createPool("p", 60, names...)
	tab := openTab(t)
	tab.open(b.URL + "/batches/1") // before there are results
	tab.waitForJS(`document.getElementById("pulse").textContent === "live" && !document.getElementById("results-title")`)
	b.endTasks(names[:20]...)
	tab.waitForJS(`document.querySelectorAll("#results tbody tr").length === 20 && document.getElementById("results-title")`)
	evalJS[bool](tab, `(document.querySelector("select[name=field]").value = "firmware", document.querySelector("input[name=tag]").value = "site", true)`)
	tab.click(".columns summary")
	tab.click(".columns input[value=note]")
	tab.click("form.filters button")
	tab.waitForJS(`location.search.includes("field=firmware") && !document.querySelector("#results thead").textContent.includes("note")`)
	tab.waitForJS(`document.getElementById("pulse").textContent === "live"`)
	b.endTasks(names[20:30]...)
	tab.waitForJS(`document.querySelector("#batch .pills").textContent.includes("succeeded 23") && document.querySelector("#results [id^=value-]").textContent.startsWith("11")`)
	tab.checkScreen("batch-results")
}

// TestABatchIsEdited checks the form of a batch's settings: it changes the settings that can be changed, and
// nothing else.
func TestABatchIsEdited(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3)
	b.Do("POST", "/v1/batches", map[string]any{
		"pool": "p", "devices": []string{"d-1"}, "not_after": "2099-01-01T00:00:01.500Z", "windows": []map[string]any{{"cron": "0 1 * * *", "duration": "4h", "timezone": "Asia/Shanghai"}},
		"limits": []map[string]any{{"name": "a", "per": "device", "algorithm": "fixed", "per_ms": 60000, "max": 1}},
	}, nil)
	_, text, _ := b.getPage("/batches/1/edit")
	expectContains(t, text, "0 1 * * * 4h Asia/Shanghai", `value="2099-01-01T00:00:01"`, `name="limit.name" maxlength="64" value="a"`, `value="1/1m"`)
	rows := url.Values{"limit.name": {"a", ""}, "limit.per": {"device", ""}, "limit.algorithm": {"fixed", "sliding"}, "limit.rate": {"1/1m", ""}, "limit.period": {"", ""}, "limit.timezone": {"", ""}, "limit.on_error": {"", ""}, "limit.trust_device": {"", ""}}
	form := func(changes url.Values) url.Values {
		f := url.Values{"weight": {"1"}, "priority": {"0"}, "attempts": {"3"}, "not_after": {"2099-01-01T00:00:01"}, "windows": {"0 1 * * * 4h Asia/Shanghai"}}
		maps.Copy(f, rows)
		maps.Copy(f, changes)
		return f
	}
	var got map[string]any
	edit := func(changes url.Values) {
		t.Helper()
		if status, text, _ := b.postForm("/batches/1/edit", form(changes), nil); status != http.StatusSeeOther {
			t.Fatalf("%d %s", status, problemText(text))
		}
		got = nil
		b.Do("GET", "/v1/batches/1", nil, &got)
	}
	edit(url.Values{"weight": {"7"}, "windows": {"0 1 * * * 4h Asia/Shanghai\r\n0 5 * * * 1h"}})
	if got["weight"] != 7.0 || got["not_after"] != "2099-01-01T00:00:01.500Z" || fmt.Sprint(got["windows"]) != "[map[cron:0 1 * * * duration:4h timezone:Asia/Shanghai] map[cron:0 5 * * * duration:1h timezone:UTC]]" {
		t.Errorf("%v", got)
	}
	if said := fmt.Sprint(got["limits"]); said != "[map[algorithm:fixed max:1 name:a per:device per_ms:60000]]" {
		t.Errorf("limits: %s", said)
	}
	edit(url.Values{"weight": {""}, "not_after": {""}, "max_wait": {"90s"}, "windows": {""}, "limit.name": {""}, "limit.per": {""}, "limit.rate": {""}, "attempts": {"5"}, "priority": {"-2"}})
	if got["weight"] != 1.0 || got["not_after"] != nil || fmt.Sprint(got["windows"], got["limits"]) != "[] []" || got["max_attempts"] != 5.0 || got["priority"] != -2.0 || got["max_wait_ms"] != 90000.0 {
		t.Errorf("%v", got)
	}
	for input, want := range map[string]string{"weight": "Weight: a whole number", "windows": "five fields of cron", "limit.rate": "must be a number and a time", "not_after": "Not after: a time", "max_wait": "Longest wait: a duration"} {
		if status, text, _ := b.postForm("/batches/1/edit", form(url.Values{input: {"{x"}}), nil); status != http.StatusUnprocessableEntity || !strings.Contains(text, want) {
			t.Errorf("%s: %d, %s", input, status, problemText(text))
		}
	}
	if status, text, _ := b.postForm("/batches/1/edit", form(url.Values{"weight": {"1001"}}), nil); status != http.StatusUnprocessableEntity || !strings.Contains(text, "weight") || !strings.Contains(text, "1000") {
		t.Errorf("%d %s", status, problemText(text))
	}
}

// TestABatchIsCloned checks the clone of a batch: it has the same work and settings. Its devices are all devices of the batch, only the devices
// that failed, or other devices.
func TestABatchIsCloned(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 60)
	b.Do("POST", "/v1/batches", map[string]any{
		"name": "nightly", "pool": "p", "kind": "k", "payload": map[string]any{"server": "st1", "opts": map[string]any{"udp": true, "streams": 4}}, "max_attempts": 1, "retry_on": []string{"timed_out"},
		"retry_backoff_ms": 90_000, "on_lost": "fail", "lease_ms": 120_000, "max_run_ms": 1_800_000, "weight": 5, "priority": 3, "finish_inside": false, "not_after": "2099-01-01T00:00:00Z", "max_wait_ms": 7_200_000,
		"abort": map[string]any{"failure": 0.07, "min": 10}, "windows": []map[string]any{{"cron": "* * * * *", "duration": "1h"}},
		"tasks": []map[string]any{
			{"device": "d-1"},
			{"device": "d-2", "payload": map[string]any{"opts": map[string]any{"udp": nil}, "n": 1}, "priority": 9},
			{"device": "d-3", "not_before": "2026-01-01T00:00:00Z", "not_after": "2098-01-01T00:00:00Z"},
		},
	}, nil)
	for i, name := range []string{"d-2", "d-3"} {
		g := b.ReportUntilGranted(name)
		b.sendReport(name, map[string]any{"accept": false, "results": []map[string]any{{"task": g.ID, "token": g.Token, "status": []string{"failed", "succeeded"}[i], "error": "x"}}})
	}
	_, text, _ := b.getPage("/new-batch?from=1")
	expectContains(t, text, "the same devices: 3 tasks", "the devices that failed: 1 task", "nightly")
	clone := func(changes map[string]string) string {
		t.Helper()
		form := map[string]string{}
		for _, input := range regexp.MustCompile(`<input[^>]* name="([^"]+)"[^>]*>`).FindAllStringSubmatch(text, -1) {
			value := regexp.MustCompile(` value="([^"]*)"`).FindStringSubmatch(input[0])
			if value == nil || strings.Contains(input[0], "checkbox") && !strings.Contains(input[0], " checked") {
				continue
			}
			form[input[1]] = value[1]
		}
		for _, area := range regexp.MustCompile(`(?s)<textarea[^>]* name="([^"]+)"[^>]*>(.*?)</textarea>`).FindAllStringSubmatch(text, -1) {
			form[area[1]] = strings.ReplaceAll(area[2], "&#34;", `"`)
		}
		for _, choice := range regexp.MustCompile(`(?s)<select[^>]* name="([^"]+)"[^>]*>(.*?)</select>`).FindAllStringSubmatch(text, -1) {
			if value := regexp.MustCompile(`<option value="([^"]*)" selected`).FindStringSubmatch(choice[2]); value != nil {
				form[choice[1]] = value[1]
			}
		}
		form["do"] = "create"
		maps.Copy(form, changes)
		status, said, next := b.submitBatchForm(form, "")
		id, found := strings.CutPrefix(next, "/batches/")
		if status != http.StatusSeeOther || !found {
			t.Fatalf("%d %s", status, problemText(said))
		}
		id, _, _ = strings.Cut(id, "?")
		return id
	}
	whole := func(id string) (batch map[string]any, tasks map[string]string) {
		t.Helper()
		b.Do("GET", "/v1/batches/"+id, nil, &batch)
		for _, name := range []string{"id", "created_at", "counts", "rate_per_minute", "eta", "opens_at", "closes_at", "total", "state"} {
			delete(batch, name)
		}
		var list struct {
			Tasks []struct {
				Device   string
				Priority int
				Payload  json.RawMessage
				NotAfter string `json:"not_after"`
			}
		}
		b.Do("GET", "/v1/tasks?batch="+id, nil, &list)
		tasks = map[string]string{}
		for _, one := range list.Tasks {
			tasks[one.Device] = fmt.Sprintf("%d %s%s", one.Priority, compactJSON(t, one.Payload), one.NotAfter)
		}
		return batch, tasks
	}
	first, tasks := whole("1")
	again, sameTasks := whole(clone(nil))
	if diff := cmp.Diff(first, again) + cmp.Diff(tasks, sameTasks); diff != "" {
		t.Errorf("a clone differs: %s", diff)
	}
	if _, failed := whole(clone(map[string]string{"same": "failed", "key": "failed"})); len(failed) != 1 || failed["d-2"] != tasks["d-2"] {
		t.Errorf("those that failed: %v", failed)
	}
	_, other := whole(clone(map[string]string{"key": "other", "payload": `{"server":"st2","opts":{"udp":true,"streams":4}}`}))
	want := map[string]string{"d-1": `3 {"opts":{"streams":4,"udp":true},"server":"st2"}`, "d-2": `9 {"n":1,"opts":{"streams":4},"server":"st2"}`, "d-3": `3 {"opts":{"streams":4,"udp":true},"server":"st2"}2098-01-01T00:00:00.000Z`}
	if diff := cmp.Diff(want, other); diff != "" {
		t.Error(diff)
	}
	if _, chosen := whole(clone(map[string]string{"same": "", "devices": "d-9", "key": "chosen"})); len(chosen) != 1 || chosen["d-9"] == "" {
		t.Errorf("chosen devices: %v", chosen)
	}
	if status, said, _ := b.submitBatchForm(map[string]string{"from": "1", "same": "all", "devices": "d-9", "pool": "p", "do": "create", "key": "both"}, ""); status != http.StatusUnprocessableEntity || !strings.Contains(problemText(said), "one of them") {
		t.Errorf("%d %s", status, problemText(said))
	}
	if status, _, _ := b.getPage("/new-batch?from=99"); status != http.StatusNotFound {
		t.Errorf("a clone of no batch: %d", status)
	}
}

func compactJSON(t *testing.T, text json.RawMessage) string {
	t.Helper()
	var value any
	must.Succeed(t, json.Unmarshal(text, &value))
	out, err := json.Marshal(value)
	must.Succeed(t, err)
	return string(out)
}

// TestManyTasksAreCancelledByTheirNumber cancels more than 1,000 tasks. The operator must type the number of waiting tasks that the page
// showed. If more tasks than this number wait now, nothing is cancelled.
func TestManyTasksAreCancelledByTheirNumber(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3, deviceIDs(1001)...)
	b.Do("POST", "/v1/batches", map[string]any{"pool": "p", "devices": deviceIDs(1000)}, nil)
	_, text, _ := b.getPage("/batches/1/cancel")
	expectContains(t, text, `name="count"`, `name="waits" value="1001"`)
	_, text, _ = b.getPage("/batches/2/cancel")
	if strings.Contains(text, `name="count"`) {
		t.Error("the number of 1,000 tasks is asked for")
	}
	for _, form := range []url.Values{nil, {"count": {"1001"}}, {"waits": {"1001"}}, {"waits": {"1001"}, "count": {"1000"}}, {"waits": {"1000"}, "count": {"1000"}}} {
		if status, text, _ := b.postForm("/batches/1/cancel", form, nil); status != http.StatusUnprocessableEntity || !strings.Contains(text, "Count: ") || !strings.Contains(text, "1001") {
			t.Errorf("%v: %d %s", form, status, problemText(text))
		}
	}
	var batch struct{ State string }
	if b.Do("GET", "/v1/batches/1", nil, &batch); batch.State != "running" {
		t.Errorf("the batch is %s", batch.State)
	}
	for path, form := range map[string]url.Values{"/batches/1/cancel": {"waits": {"1001"}, "count": {"1,001"}}, "/batches/2/cancel": nil} {
		if status, text, _ := b.postForm(path, form, nil); status != http.StatusSeeOther {
			t.Errorf("%s: %d %s", path, status, problemText(text))
		}
	}
}
