package web_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/operators/web"
	"github.com/fleetslots/dispatcher/store"
)

// pageUpdate is one message that an open page receives from the server.
type pageUpdate struct {
	Now    int64
	Moment string
	Main   string
	Pieces []struct{ ID, HTML string }
	Error  string
}

// openStream opens the stream of updates of a page. The returned channel delivers each update until the test ends.
func (b *testReplica) openStream(page string) <-chan pageUpdate {
	b.Helper()
	r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, b.URL+"/live?page="+url.QueryEscape(page), nil)
	b.Must(err)
	response, err := http.DefaultClient.Do(r)
	b.Must(err)
	b.Cleanup(func() { response.Body.Close() })
	if response.StatusCode != http.StatusOK {
		b.Fatalf("stream of %s: %d", page, response.StatusCode)
	}
	updates := make(chan pageUpdate, 1000)
	go func() {
		defer close(updates)
		lines := bufio.NewScanner(response.Body)
		lines.Buffer(nil, 64<<20)
		for lines.Scan() {
			var u pageUpdate
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && json.Unmarshal([]byte(data), &u) == nil {
				updates <- u
			}
		}
	}()
	return updates
}

// awaitUpdate reads updates until one of them satisfies the function wanted.
func (b *testReplica) awaitUpdate(updates <-chan pageUpdate, what string, wanted func(pageUpdate) bool) {
	b.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		select {
		case u, ok := <-updates:
			if !ok {
				b.Fatalf("the stream ended before %s", what)
			}
			if wanted(u) {
				return
			}
		case <-deadline.C:
			b.Fatalf("waited in vain for %s", what)
		}
	}
}

func updateContains(text string) func(pageUpdate) bool {
	return func(u pageUpdate) bool {
		if strings.Contains(u.Main, text) {
			return true
		}
		for _, p := range u.Pieces {
			if strings.Contains(p.HTML, text) {
				return true
			}
		}
		return false
	}
}

// TestPagesFollowAllReplicas checks an open page of one replica: it shows events of other replicas, and the stream
// sends only the part of the page that changed.
func TestPagesFollowAllReplicas(t *testing.T) {
	t.Parallel()
	first := startOnServers(t)
	second := startReplica(t, first.Stores)
	first.createPool("p", 60, "d-1")
	grid, tasks, task := second.openStream("/pools/p"), second.openStream("/tasks?pool=p"), second.openStream("/tasks/1")
	for _, s := range []<-chan pageUpdate{grid, tasks, task} {
		second.awaitUpdate(s, "the whole page", func(u pageUpdate) bool { return u.Main != "" })
	}
	granted := first.ReportUntilGranted("d-1")
	second.awaitUpdate(grid, "the slot", func(u pageUpdate) bool {
		if u.Main != "" {
			t.Error("the whole page was sent again")
		}
		for _, p := range u.Pieces {
			if p.ID == fmt.Sprintf("slot-%d", granted.Slot) && strings.Contains(p.HTML, `data-device="d-1"`) {
				return len(u.Pieces) < 10
			}
		}
		return false
	})
	second.awaitUpdate(tasks, "the state in the list", updateContains(`<span class="state dispatched">dispatched</span></td>`))
	second.awaitUpdate(task, "the state of the task", updateContains(`aria-current="step">dispatched`))
	first.sendReport("d-1", map[string]any{"accept": false, "results": []map[string]any{{"task": granted.ID, "token": granted.Token, "status": "succeeded"}}})
	second.awaitUpdate(tasks, "the result in the list", updateContains(`<span class="state succeeded">succeeded</span></td>`))
	second.awaitUpdate(task, "the result of the task", updateContains(`aria-current="step">succeeded`))
}

// TestPagesSayWhichMomentTheyShow checks that a page names the snapshot of the ledger that it shows, when it is
// opened and with each update. The snapshot becomes newer even if nothing on the page has changed.
func TestPagesSayWhichMomentTheyShow(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3, "d-1")
	b.createPool("q", 3)
	newest := func() string {
		var list struct{ Events []struct{ ID int64 } }
		b.Do("GET", "/v1/events?page_size=1", nil, &list)
		return itoa(list.Events[0].ID)
	}
	moment := regexp.MustCompile(`<main id="main" data-moment="(\d+)\.1">`)
	for _, page := range []string{"/", "/?sort=held", "/pools/p", "/batches", "/batches/1", "/tasks", "/tasks/1", "/devices", "/activity", "/system"} {
		_, text, _ := b.getPage(page)
		if found := moment.FindStringSubmatch(text); found == nil || found[1] != newest() {
			t.Errorf("%s shows the moment %v, want %s: %.600s", page, found, newest(), text)
		}
	}
	other := b.openStream("/pools/q")
	b.awaitUpdate(other, "the page", func(u pageUpdate) bool { return u.Main != "" && u.Moment == newest()+".1" })
	b.ReportUntilGranted("d-1")
	b.awaitUpdate(other, "the moment after a grant elsewhere", func(u pageUpdate) bool { return u.Main == "" && u.Moment == newest()+".1" })
	tab := openTab(t)
	tab.open(b.URL + "/pools/q")
	b.Do("PATCH", "/v1/pools/q", map[string]any{"capacity": 2}, nil)
	tab.waitForJS(`document.querySelectorAll(".grid .cell").length === 2 && document.getElementById("main").dataset.moment === "` + newest() + `.1"`)
}

// TestManyPagesAreOneReading checks a page that many viewers have open: it is read once for all of them. While
// nothing changes, only the log is read.
func TestManyPagesAreOneReading(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 60, "d-1")
	streams := make([]<-chan pageUpdate, 50)
	for i := range streams {
		streams[i] = b.openStream("/")
		b.awaitUpdate(streams[i], "the page", func(u pageUpdate) bool { return u.Main != "" })
	}
	views, logs := b.store.viewReads.Load(), b.store.markReads.Load()
	b.Await("ten looks at the log", func() bool { return b.store.markReads.Load() >= logs+10 })
	if n, m := b.store.viewReads.Load()-views, b.store.markReads.Load()-logs; n > m+2 {
		t.Errorf("%d readings for 50 pages in %d ticks", n, m)
	}
	b.ReportUntilGranted("d-1")
	for _, s := range streams {
		b.awaitUpdate(s, "the grant", updateContains("<b>1</b></a> / 60"))
	}
}

// TestPageSaysWhenItIsNotUpToDate checks an open page while the ledger cannot be read: it shows that it is not up
// to date, and continues by itself afterwards.
func TestPageSaysWhenItIsNotUpToDate(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3, "d-1")
	updates := b.openStream("/pools/p")
	b.awaitUpdate(updates, "the page", func(u pageUpdate) bool { return u.Main != "" })
	b.store.logFails.Store(true)
	b.awaitUpdate(updates, "a word about the outage", func(u pageUpdate) bool { return u.Error != "" })
	b.ReportUntilGranted("d-1")
	b.store.logFails.Store(false)
	b.awaitUpdate(updates, "what was missed", updateContains(`data-device="d-1"`))
}

// TestSlowPagesHoldUpNoOther checks pages whose reading is slow: they do not delay other pages, however many they
// are. The time limit is checked by TestPagesThatHangKeepToTheSlowLane.
func TestSlowPagesHoldUpNoOther(t *testing.T) {
	t.Parallel()
	b := startOnServers(t)
	b.createPool("p", 60, deviceIDs(9)...)
	b.store.countHangs.Store(true)
	slow := make([]<-chan pageUpdate, 7)
	var opening sync.WaitGroup
	for i := range slow {
		opening.Go(func() { slow[i] = b.openStream(fmt.Sprintf("/tasks?pool=p&window=%d", i)) })
	}
	light := b.openStream("/pools/p")
	b.awaitUpdate(light, "the page", func(u pageUpdate) bool { return u.Main != "" })
	opening.Wait()
	for i := range 6 {
		granted := b.ReportUntilGranted(deviceIDs(9)[i])
		b.awaitUpdate(light, "the grant", updateContains(fmt.Sprintf(`id="slot-%d" class="cell fresh"`, granted.Slot)))
	}
	b.store.countHangs.Store(false)
	b.awaitUpdate(slow[0], "the page that was slow", func(u pageUpdate) bool { return u.Main != "" })
}

// TestStreamOfNoPage checks that only pages that are updated live have a stream. If an export had a stream, it
// would be read again with each tick.
func TestStreamOfNoPage(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	b.createPool("p", 3)
	for _, page := range []string{
		"", "https://evil.example/", "//evil.example/", "/v1/pools", "/live?page=/", "/sign-in", "/activity.csv", "/assets/live.js",
		"/new-pool", "/new-batch", "/pools/p/edit", "/cancel-tasks", "/pools//p", "/pools/../activity.csv", "/activity/",
	} {
		response, err := http.Get(b.URL + "/live?page=" + url.QueryEscape(page))
		b.Must(err)
		response.Body.Close() // if it were a stream, reading it would not end
		if response.StatusCode != http.StatusBadRequest {
			t.Errorf("%q: %s", page, response.Status)
		}
	}
}

// TestPageThatPanicsEndsNothing checks a page whose reading panics: it shows an error, and other pages continue.
func TestPageThatPanicsEndsNothing(t *testing.T) {
	t.Parallel()
	var told atomic.Int64
	b := startEmbedded(t, func(o *web.Options) {
		o.Panicked = func(string, *rescue.Panic) { told.Add(1) }
	})
	b.createPool("p", 3, "d-1")
	updates, others := b.openStream("/tasks?pool=p"), b.openStream("/activity?actor_kind=everybody")
	b.awaitUpdate(updates, "the page", func(u pageUpdate) bool { return u.Main != "" })
	b.awaitUpdate(others, "the other page", func(u pageUpdate) bool { return u.Main != "" })
	b.store.countPanics.Store(true)
	b.ReportUntilGranted("d-1")
	b.awaitUpdate(updates, "a word about the fault", func(u pageUpdate) bool { return u.Error != "" })
	b.awaitUpdate(others, "the grant", updateContains("task.granted"))
	b.store.countPanics.Store(false)
	b.awaitUpdate(updates, "what was missed", updateContains(`<span class="state dispatched">dispatched</span></td>`))
	if told.Load() == 0 {
		t.Error("nobody was told of the panic")
	}
}

// TestPagesSayWhatTheAPISays checks an open page while its numbers change: they equal the numbers of the API.
func TestPagesSayWhatTheAPISays(t *testing.T) {
	t.Parallel()
	b := startOnServers(t)
	b.createPool("p", 5, deviceIDs(30)...)
	updates := b.openStream("/batches/1")
	var wait sync.WaitGroup
	for i := range 30 {
		wait.Go(func() {
			d := fmt.Sprintf("d-%d", i)
			g := b.ReportUntilGranted(d)
			status := []string{"succeeded", "rejected"}[i%2]
			b.sendReport(d, map[string]any{"accept": false, "results": []map[string]any{{"task": g.ID, "token": g.Token, "status": status, "error": "no <b>route</b>"}}})
		})
	}
	wait.Wait()
	var batch struct{ Counts map[string]int64 }
	b.Do("GET", "/v1/batches/1", nil, &batch)
	for _, state := range store.TaskStates() {
		want := fmt.Sprintf(`<span class="state %s">%s</span> <b>%d</b>`, state, strings.ReplaceAll(string(state), "_", " "), batch.Counts[string(state)])
		_, text, _ := b.getPage("/batches/1")
		expectContains(t, text, want)
		_, text, _ = b.getPage("/tasks?pool=p")
		expectContains(t, text, want)
		_, text, _ = b.getPage("/tasks")
		expectContains(t, text, want)
	}
	if batch.Counts["succeeded"] != 15 || batch.Counts["failed"] != 15 {
		t.Fatalf("counts: %v", batch.Counts)
	}
	b.awaitUpdate(updates, "the last result", func(u pageUpdate) bool {
		return updateContains(`succeeded</span> <b>15</b>`)(u) && updateContains(`failed</span> <b>15</b>`)(u) && updateContains(`<b>15</b></a></td><td class="text"><a href="/tasks?batch=1&amp;error=no`)(u)
	})
}
