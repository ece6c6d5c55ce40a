package web_test

import (
	"encoding/csv"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/operators"
)

// TestFailedTasksAreExportedAndTriedAgain checks, in a browser, that three clicks export the failed tasks of several batches with the tags
// of their devices, and try only these tasks again: not a task that fails after the page was read.
func TestFailedTasksAreExportedAndTriedAgain(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.Do("POST", "/v1/devices", map[string]any{"id": "d-1", "tags": map[string]string{"site": "hz"}}, nil)
	end := func(device, status string) {
		granted := b.ReportUntilGranted(device)
		b.sendReport(device, map[string]any{"accept": false, "results": []any{map[string]any{"task": granted.ID, "token": granted.Token, "status": status, "error": "no route"}}})
	}
	for _, pool := range []string{"p", "q"} {
		b.Do("PUT", "/v1/pools/"+pool, map[string]any{"capacity": 9}, nil)
	}
	for pool, devices := range map[string][]string{"p": {"d-1", "d-3"}, "q": {"d-2", "d-4"}} {
		b.Do("POST", "/v1/batches", map[string]any{"pool": pool, "devices": devices, "max_attempts": 1}, nil)
	}
	end("d-1", "failed")
	end("d-2", "failed")
	end("d-3", "succeeded")
	tab := openTab(t)
	tab.open(b.URL + "/batches")
	tab.click(`a[href="/retry-tasks?state=failed"]`)
	tab.waitForJS(`location.pathname === "/retry-tasks" && document.readyState === "complete"`)
	expectContains(t, tab.elementText("main"), "This changes 2 tasks", "no route")
	tab.checkScreen("tasks-failed-all")

	end("d-4", "failed") // after the page was read
	exported := evalJS[string](tab, `document.querySelector("a[download]").getAttribute("href")`)
	_, text, header := b.getPage(exported)
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil || len(rows) != 3 || header.Get("Content-Disposition") != `attachment; filename="tasks.csv"` {
		t.Fatalf("%v, %v: %s", err, header, text)
	}
	last, device := len(rows[0])-1, slices.Index(rows[0], "device")
	tags := map[string]string{}
	for _, row := range rows[1:] {
		tags[row[device]] = row[last]
	}
	if rows[0][last] != "device_tags" || tags["d-1"] != `{"site":"hz"}` || tags["d-2"] != "{}" {
		t.Errorf("exported %q", rows)
	}
	tab.click("form.fields button.primary")
	tab.waitForJS(`location.pathname === "/tasks"`)
	var list operators.TaskList
	b.Do("GET", "/v1/tasks", nil, &list)
	states := map[string]string{}
	for _, task := range list.Tasks {
		states[task.Device] = task.State
	}
	if want := (map[string]string{"d-1": "pending", "d-2": "pending", "d-3": "succeeded", "d-4": "failed"}); fmt.Sprint(states) != fmt.Sprint(want) {
		t.Errorf("afterwards the tasks are %v, want %v", states, want)
	}
}

// TestBatchesAreFilteredByStateAndPool checks the filters of the page of batches in a browser: it lists what the API lists.
func TestBatchesAreFilteredByStateAndPool(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 9)
	b.createPool("q", 9)
	for _, one := range [][]string{{"p", "d-1"}, {"q", "d-2", "d-3", "d-4"}, {"p", "d-5"}} {
		b.Do("POST", "/v1/batches", map[string]any{"pool": one[0], "devices": one[1:], "max_attempts": 1}, nil)
	}
	b.Do("POST", "/v1/batches/3/pause", map[string]any{"reason": "later"}, nil)
	for device, status := range map[string]string{"d-1": "failed", "d-2": "failed", "d-3": "failed"} {
		granted := b.ReportUntilGranted(device)
		b.sendReport(device, map[string]any{"accept": false, "results": []any{map[string]any{"task": granted.ID, "token": granted.Token, "status": status}}})
	}
	listed := func(query string) (ids string) {
		var list operators.BatchList
		b.Do("GET", "/v1/batches?"+query, nil, &list)
		for _, one := range list.Batches {
			ids += itoa(one.ID) + " "
		}
		return ids
	}
	tab := openTab(t)
	for _, c := range []struct{ show, pool, query, want string }{
		{"paused", "", "state=paused", "3 "},
		{"running", "q", "state=running&pool=q", "2 "},
		{"most-failed", "", "sort=failed", "2 1 "},
		{"ended", "p", "sort=ended&pool=p", "1 "},
		{"", "p", "pool=p", "3 1 "},
	} {
		b.Await("the list "+c.query, func() bool { return listed(c.query) == c.want })
		tab.open(b.URL + "/batches")
		tab.setInput(`.filters [name="show"]`, c.show)
		tab.setInput(`.filters [name="pool"]`, c.pool)
		tab.click(".filters button")
		tab.waitForJS(`location.search.includes("show=` + c.show + `") && document.readyState === "complete"`)
		if shown := evalJS[string](tab, `[...document.querySelectorAll("#batch-list tbody tr")].map((row) => row.id.slice(6) + " ").join("")`); shown != c.want {
			t.Errorf("%s of pool %q: batches %q, want %q", c.show, c.pool, shown, c.want)
		}
	}
	tab.checkScreen("batches-filtered")
	for _, query := range []string{"state=paused&sort=failed", "sort=failed&name=b", "state=open&kind=k"} {
		b.Get("/v1/batches?"+query).ExpectProblem(422, "invalid_field", "state, sort: not together")
	}
}
