package web_test

import (
	"bytes"
	"encoding/json"
	"html"
	"maps"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// submitBatchForm sends the form for a new batch. If file is not empty, the form also has a file with this content.
func (b *testReplica) submitBatchForm(form map[string]string, file string) (status int, text, location string) {
	b.Helper()
	var content bytes.Buffer
	to := multipart.NewWriter(&content)
	for name, value := range form {
		b.Must(to.WriteField(name, value))
	}
	part, err := to.CreateFormFile("file", "tasks") // a browser also sends an empty file
	b.Must(err)
	_, _ = part.Write([]byte(file))
	_ = to.Close()
	a := b.Send(http.MethodPost, "/new-batch", http.Header{"Content-Type": {to.FormDataContentType()}}, &content)
	return a.Status, string(a.Body), a.Header.Get("Location")
}

// filledBatchForm returns a filled-in form for a new batch. Only the devices are missing.
func filledBatchForm() map[string]string {
	return map[string]string{
		"name": "nightly", "pool": "p", "kind": "speedtest", "payload": `{"server":"st1","streams":1}`, "finish_inside": "true",
		"not_before": "2026-01-01T00:00", "not_after": "2099-01-01T00:00", "max_wait": "26h", "windows": "0 1 * * * 4h Asia/Shanghai\r\n\r\n30 2 * * 6 90m",
		"attempts": "5", "on_lost": "fail", "lease": "2m", "max_run": "30m", "weight": "7", "priority": "-3", "lane": "urgent",
		"abort_failure": "20 %", "abort_min": "10", "limit.name": "a", "limit.per": "device", "limit.algorithm": "sliding", "limit.rate": "1/1m",
		"duplicates": "refuse", "do": "create",
	}
}

// TestBatchFormSaysAll checks that every input of the form for a new batch reaches the batch, whatever the format
// of its tasks is.
func TestBatchFormSaysAll(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3)
	for name, c := range map[string]struct{ field, text, file string }{
		"devices":     {field: "devices", text: "d-1; d-2\r\nd-3"},
		"csv":         {field: "tasks", text: "device,server,streams:json\r\nd-1,,4\r\nd-2,st2,\r\nd-3,,\r\n"},
		"csv file":    {file: "\ufeffdevice,server,streams:json\nd-1,,4\nd-2,st2,\nd-3,,\n"},
		"json lines":  {file: `{"device":"d-1","payload":{"streams":4}}` + "\n" + `{"device":"d-2","payload":{"server":"st2"}}` + "\n" + `{"device":"d-3"}`},
		"json list":   {field: "tasks", text: ` [{"device":"d-1","payload":{"streams":4}},{"device":"d-2","payload":{"server":"st2"}},{"device":"d-3"}]`},
		"tags, later": {field: "tags", text: "site:a, model:x"},
	} {
		form := filledBatchForm()
		form["key"] = strings.ReplaceAll("key-of-"+name, " ", "-")
		if c.field != "" {
			form[c.field] = c.text
		}
		if c.field == "tags" {
			for _, id := range []string{"t-1", "t-2", "t-3"} {
				b.Do("POST", "/v1/devices", map[string]any{"id": id, "tags": map[string]string{"site": "a", "model": "x"}}, nil)
			}
			form["unknown_devices"] = "refuse"
		}
		status, text, next := b.submitBatchForm(form, c.file)
		id, found := strings.CutPrefix(next, "/batches/")
		if status != http.StatusSeeOther || !found {
			t.Fatalf("%s: %d %s", name, status, problemText(text))
		}
		id, _, _ = strings.Cut(id, "?")
		b.expectFilledBatch(name, id)
		_, page, _ := b.getPage("/batches/" + id)
		expectContains(t, page, "when 20 % fail, after 10 tasks", "<dt>Longest wait</dt>", "0 1 * * *, 4h, Asia/Shanghai", "<summary>Limits</summary>")
		if c.field == "devices" || c.field == "tags" {
			continue
		}
		var tasks struct {
			Tasks []struct {
				Device  string
				Payload map[string]any
			}
		}
		b.Do("GET", "/v1/tasks?batch="+id, nil, &tasks)
		payloads := map[string]string{}
		for _, one := range tasks.Tasks {
			said, _ := json.Marshal(one.Payload)
			payloads[one.Device] = string(said)
		}
		want := map[string]string{"d-1": `{"server":"st1","streams":4}`, "d-2": `{"server":"st2","streams":1}`, "d-3": `{"server":"st1","streams":1}`}
		if !maps.Equal(payloads, want) {
			t.Errorf("%s: payloads %v", name, payloads)
		}
	}
}

func (b *testReplica) expectFilledBatch(name, id string) {
	b.Helper()
	var made map[string]any
	b.Do("GET", "/v1/batches/"+id, nil, &made)
	shown := map[string]any{}
	for _, field := range []string{
		"name", "pool", "kind", "not_before", "not_after", "windows", "finish_inside", "max_attempts", "on_lost", "lease_ms", "max_run_ms", "max_wait_ms", "weight", "priority", "lane", "abort", "limits", "total",
	} {
		shown[field] = made[field]
	}
	got, _ := json.Marshal(shown)
	const want = `{"abort":{"failure":0.2,"min":10},"finish_inside":true,"kind":"speedtest","lane":"urgent","lease_ms":120000,` +
		`"limits":[{"algorithm":"sliding","name":"a","per":"device","windows":[{"max":1,"per_ms":60000}]}],"max_attempts":5,"max_run_ms":1800000,"max_wait_ms":93600000,"name":"nightly",` +
		`"not_after":"2099-01-01T00:00:00.000Z","not_before":"2026-01-01T00:00:00.000Z","on_lost":"fail","pool":"p","priority":-3,"total":3,"weight":7,` +
		`"windows":[{"cron":"0 1 * * *","duration":"4h","timezone":"Asia/Shanghai"},{"cron":"30 2 * * 6","duration":"90m","timezone":"UTC"}]}`
	if string(got) != want {
		b.Errorf("%s: made\n%s, want\n%s", name, got, want)
	}
}

// problemText returns the text of the error on a page.
func problemText(text string) string {
	_, after, _ := strings.Cut(text, `class="problem" role="alert">`)
	problem, _, _ := strings.Cut(after, "</p>")
	return html.UnescapeString(problem)
}

// TestBatchFormKeepsWhatWasEntered checks a form that is refused: it shows the reason and keeps all input,
// including the content of a file.
func TestBatchFormKeepsWhatWasEntered(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3)
	const file = "device,server\nd-1,st1\nd 2,<st2>\n"
	for _, c := range []struct{ field, value, file, want string }{
		{"", "", file, "line 3"},
		{"tasks", "[1", "", "Tasks: no JSON list"},
		{"tasks", "device\nd-1", file, "a file or text, not both"},
		{"devices", "d-1", file, "one of them"},
		{"devices", "", "", "exactly one is required"},
		{"tags", "site", "", "Tags: name:value"},
		{"windows", "0 1 * * *", file, "five fields of cron"},
		{"windows", "0 1 * * 9 4h", "device\nd-1", "Window 1, cron"},
		{"abort_failure", "120", file, "a percentage"},
		{"abort_min", "many", file, "After at least: a whole number"},
		{"limit.rate", "1", file, "Limit 1: at most"},
		{"limit.per", "nothing", "device\nd-1", "Limit 1, per"},
		{"payload", "{", file, "Payload: not JSON"},
		{"lease", "long", file, "Lease: a duration"},
		{"not_after", "soon", file, "Not after: a time"},
		{"attempts", "many", file, "Attempts: a whole number"},
		{"attempts", "1000", "device\nd-1", "max_attempts"},
		{"pool", "nowhere", "device\nd-1", "no such pool"},
		{"duplicates", "refuse", "device\nd-1\nd-1", "line"},
	} {
		form := filledBatchForm()
		form["key"] = "one"
		if c.field != "" {
			form[c.field] = c.value
		}
		status, text, _ := b.submitBatchForm(form, c.file)
		if problem := problemText(text); status < 400 || status >= 500 || !strings.Contains(problem, c.want) {
			t.Errorf("%s=%q: %d, %q, want %q", c.field, c.value, status, problem, c.want)
		}
		for name, value := range form {
			if name != "do" && name != "finish_inside" && name != "on_lost" && name != "duplicates" && !strings.Contains(html.UnescapeString(text), value) {
				t.Errorf("%s=%q: %s is not there any more", c.field, c.value, name)
			}
		}
		if !strings.Contains(html.UnescapeString(text), strings.TrimSpace(c.file)) && c.want != "a file or text, not both" {
			t.Errorf("%s=%q: the file is not there any more", c.field, c.value)
		}
	}
	if status, text, _ := b.submitBatchForm(filledBatchForm(), strings.Repeat("x", 5<<20)); status != http.StatusRequestEntityTooLarge || !strings.Contains(text, "dispatcher batches create") {
		t.Errorf("a large file: %d", status)
	}
	var list struct{ Batches []any }
	b.Do("GET", "/v1/batches", nil, &list)
	if len(list.Batches) > 0 {
		t.Errorf("something was created: %v", list)
	}
}

// TestACorrectedFileReplacesTheRefusedOne checks a file with tasks that is refused: the form keeps its content as
// text. If a corrected file is sent, it replaces this text.
func TestACorrectedFileReplacesTheRefusedOne(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3)
	form := map[string]string{"pool": "p", "finish_inside": "true", "do": "create", "key": "one"}
	status, text, _ := b.submitBatchForm(form, "device\nd 1\n")
	_, source, found := strings.Cut(text, `name="tasks_of" value="`)
	if status != http.StatusUnprocessableEntity || !found {
		t.Fatalf("a wrong file: %d %s", status, problemText(text))
	}
	form["tasks"], form["tasks_of"] = "device\r\nd 1\r\n", source[:strings.IndexByte(source, '"')]
	if status, text, _ = b.submitBatchForm(form, "device\nd-1\n"); status != http.StatusSeeOther {
		t.Errorf("the corrected one: %d %s", status, problemText(text))
	}
}

// TestBatchFormCounts checks the button of the form that only counts the tasks: it creates nothing and shows which
// tasks would be skipped.
func TestBatchFormCounts(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3)
	form := map[string]string{"pool": "p", "duplicates": "skip", "do": "count", "finish_inside": "true", "key": "one"}
	status, text, _ := b.submitBatchForm(form, "device\nd-1\nd-2\nd-1\n")
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	expectContains(t, text, "It would create <b>2 tasks</b>, and leave out 1 ", `value="one"`)
	form["do"] = "create"
	for range 2 {
		if status, text, next := b.submitBatchForm(form, "device\nd-1\nd-2\nd-1\n"); status != http.StatusSeeOther || !strings.HasPrefix(next, "/batches/1?") {
			t.Errorf("%d %s %s", status, next, text)
		}
	}
}

// TestBatchFormInABrowser checks in a browser that a part of the form is not collapsed if one of its inputs is
// filled in.
func TestBatchFormInABrowser(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3)
	tab := openTab(t)
	tab.open(b.URL + "/new-batch?pool=p")
	if open := evalJS[int](tab, `document.querySelectorAll("details[open]").length`); open != 0 {
		t.Errorf("%d parts are open", open)
	}
	tab.waitForJS(`document.querySelector("datalist option").value === "p"`)
	tab.checkScreen("batch-new")
	tab.click("details summary")
	tab.runActions(chromedp.SendKeys(chromedp.CSS("#windows"), "0 1 * *"), chromedp.SendKeys(chromedp.CSS("#tasks"), "device,server\nd-1,st1"))
	tab.click("button[value=create]")
	tab.waitForJS(`document.querySelector(".problem").textContent.includes("five fields of cron")`)
	tab.expectMessage("422")
	tab.waitForJS(`document.querySelectorAll("details[open]").length === 1 && document.getElementById("windows").value === "0 1 * *"`)
	evalJS[string](tab, `document.getElementById("windows").value = "0 1 * * * 4h"`)
	tab.checkScreen("batch-new-open")
	tab.click("button[value=create]")
	tab.waitForJS(`location.pathname === "/batches/1" && document.querySelector(".banner[role=status]").textContent.includes("created")`)
	if status, text, _ := b.getPage("/new-batch?" + url.Values{"pool": {`"><b>`}}.Encode()); status != 200 || strings.Contains(text, `"><b>`) {
		t.Errorf("%d %s", status, text)
	}
}
