package web_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/operators/web"
)

// TestPagesSayWhatTasksWaitFor checks the pages of a pool and of a batch: they show why tasks wait, grouped by
// reason, and each group links to its tasks.
func TestPagesSayWhatTasksWaitFor(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3, deviceIDs(4)...)
	b.Do("POST", "/v1/batches", map[string]any{"pool": "p", "devices": deviceIDs(2)}, nil)
	b.Do("POST", "/v1/batches/2/pause", map[string]any{}, nil)
	for path, parts := range map[string]map[string]int{
		"/pools/p": {"device_unknown": 4, "batch_paused": 2}, "/batches/1": {"device_unknown": 4}, "/batches/2": {"batch_paused": 2},
	} {
		_, text, _ := b.getPage(path)
		if strings.Contains(text, "next report") {
			t.Errorf("%s: devices that never come are said to be granted a slot: %s", path, text)
		}
		sum := 0
		for _, m := range regexp.MustCompile(`href="(`+path+`/waiting\?code=(\w+))"[^>]*><b>(\d+)</b>`).FindAllStringSubmatch(withoutHolders(text), -1) {
			n, err := strconv.Atoi(m[3])
			if err != nil || n != parts[m[2]] {
				t.Errorf("%s: %s %s, want %d", path, m[3], m[2], parts[m[2]])
			}
			sum += n
			_, list, _ := b.getPage(m[1])
			if rows := strings.Count(list, `<tr id="task-`); rows != n {
				t.Errorf("%s lists %d tasks, want %d", m[1], rows, n)
			}
			for _, task := range regexp.MustCompile(`<tr id="task-(\d+)"`).FindAllStringSubmatch(list, -1) {
				var why operators.Why
				if b.Do("GET", "/v1/tasks/"+task[1]+"/why", nil, &why); why.Reasons[0].Code != m[2] {
					t.Errorf("%s has task %s, which waits for %+v", m[1], task[1], why.Reasons[0])
				}
			}
		}
		expectContains(t, text, fmt.Sprintf(`<b>%d</b> tasks wait`, sum), `<rect class="w-`)
	}
	if status, _, _ := b.getPage("/pools/p/waiting?code=hunger"); status != 422 {
		t.Errorf("a reason that is none: %d", status)
	}
	if status, _, _ := b.getPage("/pools/none/waiting"); status != 404 {
		t.Errorf("a pool that is not there: %d", status)
	}
}

// TestNothingWaitsInABatchThatHasEnded checks the page of a batch that has ended: it shows no waiting tasks,
// although the cached sample of waiting tasks is older than the end.
func TestNothingWaitsInABatchThatHasEnded(t *testing.T) {
	t.Parallel()
	now := time.Now()
	b := startEmbedded(t, func(o *web.Options) { o.Now = func() time.Time { return now } })
	b.createPool("p", 3, deviceIDs(250)...)
	_, text, _ := b.getPage("/batches/1")
	expectContains(t, text, "<b>250</b> tasks wait", "<b>about 250</b> ", "of a sample of")
	b.Do("POST", "/v1/batches/1/cancel", nil, nil)
	b.Await("the end", func() bool {
		_, text, _ = b.getPage("/batches/1")
		return strings.Contains(text, "<title>250 cancelled</title>")
	})
	if strings.Contains(text, "tasks wait") {
		t.Error("tasks of a batch that has ended wait")
	}
}

// TestWhatWaitsIsJudgedBeforeThePageIsRead checks a page that shows why tasks wait. The tasks must be evaluated before the page opens its
// snapshot of the ledger, because an open snapshot occupies a connection.
func TestWhatWaitsIsJudgedBeforeThePageIsRead(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3, deviceIDs(4)...)
	for i, path := range []string{"/pools/p", "/batches/1"} {
		if status, _, _ := b.getPage(path); status != 200 || b.store.waitingSamples.Load() != int64(i+1) || b.store.snapshotSamples.Load() > 0 {
			t.Errorf("%s: %d, %d samples, %d of them in the snapshot of the page", path, status, b.store.waitingSamples.Load(), b.store.snapshotSamples.Load())
		}
	}
}

// withoutHolders removes from a page the table of the holders of slots. This table has a text of its own when
// nobody holds a slot.
func withoutHolders(page string) string {
	before, _, _ := strings.Cut(page, `<section id="holders">`)
	return before
}

// TestAPoolThatNobodyHoldsSaysWhy checks the page of a pool in which nothing can start: it shows the reason and
// does not promise slots.
func TestAPoolThatNobodyHoldsSaysWhy(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3, "d-1", "d-2")
	b.sendReport("d-1", map[string]any{"accept": false})
	b.Do("POST", "/v1/pools/p/pause", map[string]any{"reason": "it smokes"}, nil)
	_, text, _ := b.getPage("/pools/p")
	_, holders, _ := strings.Cut(text, `<section id="holders">`)
	expectContains(t, holders, "Nobody holds a slot.", "<b>2</b> pool paused", "/pools/p/waiting?code=pool_paused")
	for _, path := range []string{"/batches", "/batches/1"} {
		if _, text, _ = b.getPage(path); !strings.Contains(text, `<span class="state held_up">held up</span>`) || strings.Contains(text, `"state running"`) {
			t.Errorf("%s does not say that its pool is paused: %s", path, text)
		}
	}
}

// TestABatchWhoseRestCannotRunSaysSo checks the page of a batch whose last devices never reported, while another batch fills its pool. The
// page says that the batch waits, predicts no end, names the devices first and does not recommend a higher capacity. The list of the
// remaining tasks shows when each device was last seen.
func TestABatchWhoseRestCannotRunSaysSo(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 1, "a", "u-1", "u-2", "s")
	for _, device := range []string{"u-1", "u-2"} {
		b.Do("POST", "/v1/devices", map[string]any{"id": device}, nil)
	}
	b.createPool("q", 2, "e", "f", "u-1")
	b.endTasks("a", "e")
	b.ReportUntilGranted("f")
	_, text, _ := b.getPage("/batches/2") // only the running task can end
	expectContains(t, text, `<span class="state running">`, `<dt>Ends</dt><dd>–</dd>`)
	b.Do("POST", "/v1/batches", map[string]any{"pool": "p", "devices": []string{"z"}}, nil)
	b.ReportUntilGranted("z")
	b.sendReport("s", map[string]any{"id": "1"})
	tab := openTab(t)
	tab.open(b.URL + "/batches/1")
	tab.waitForJS(`document.querySelector("h1 .state").textContent === "waiting"`)
	if first := tab.elementText("#waiting .sum .nowrap"); first != "2 never reported" {
		t.Errorf("the first reason is %q", first)
	}
	if ends := evalJS[string](tab, `[...document.querySelectorAll("dt")].find((dt) => dt.textContent === "Ends").nextElementSibling.textContent`); ends != "–" {
		t.Errorf("the end is foretold: %s", ends)
	}
	tab.click("#waiting .sum .nowrap")
	tab.waitForJS(`document.querySelectorAll("tbody tr").length === 2`)
	if seen := tab.elementText(`tbody td[data-label="last seen"]`); seen != "never" {
		t.Errorf("last seen %q", seen)
	}
	tab.open(b.URL + "/batches/1/waiting?code=pool_full")
	tab.waitForJS(`document.querySelector('tbody td[data-label="last seen"] time') !== null`)
	if text := tab.elementText("tbody .remedy"); !strings.Contains(text, "raise the capacity") {
		t.Errorf("remedy %q", text)
	}
}
