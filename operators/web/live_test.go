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
	backends "github.com/fleetslots/dispatcher/internal/test/backends"
	"github.com/fleetslots/dispatcher/operators/web"
	"github.com/fleetslots/dispatcher/store"
)

// update is a message that an open page receives.
type update struct {
	Now    int64
	Moment string
	Main   string
	Pieces []struct{ ID, HTML string }
	Error  string
}

// stream opens the stream of a page, and delivers each update until the test ends.
func (b *bench) stream(page string) <-chan update {
	b.Helper()
	r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, b.url+"/live?page="+url.QueryEscape(page), nil)
	if err != nil {
		b.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { response.Body.Close() })
	if response.StatusCode != http.StatusOK {
		b.Fatalf("stream of %s: %d", page, response.StatusCode)
	}
	updates := make(chan update, 1000)
	go func() {
		defer close(updates)
		lines := bufio.NewScanner(response.Body)
		lines.Buffer(nil, 64<<20)
		for lines.Scan() {
			var u update
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && json.Unmarshal([]byte(data), &u) == nil {
				updates <- u
			}
		}
	}()
	return updates
}

// await reads updates until one satisfies wanted.
func (b *bench) await(updates <-chan update, what string, wanted func(update) bool) {
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

func shows(text string) func(update) bool {
	return func(u update) bool {
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

// TestPagesFollowAllReplicas checks that the pages of a replica show events of other replicas, and that
// the stream sends only the changed part.
func TestPagesFollowAllReplicas(t *testing.T) {
	t.Parallel()
	first, dsn := onServers(t)
	second := replica(t, backends.Postgres(t, dsn), first.redis)
	first.pool("p", 60, "d-1")
	grid, tasks, task := second.stream("/pools/p"), second.stream("/tasks?pool=p"), second.stream("/tasks/1")
	for _, s := range []<-chan update{grid, tasks, task} {
		second.await(s, "the whole page", func(u update) bool { return u.Main != "" })
	}
	granted := first.grant("d-1")
	second.await(grid, "the slot", func(u update) bool {
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
	second.await(tasks, "the state in the list", shows(`<span class="state dispatched">dispatched</span></td>`))
	second.await(task, "the state of the task", shows(`aria-current="step">dispatched`))
	first.report("d-1", map[string]any{"accept": false, "results": []map[string]any{{"task": granted.ID, "token": granted.Token, "status": "succeeded"}}})
	second.await(tasks, "the result in the list", shows(`<span class="state succeeded">succeeded</span></td>`))
	second.await(task, "the result of the task", shows(`aria-current="step">succeeded`))
}

// TestPagesSayWhichMomentTheyShow checks that a page names the snapshot it shows, when it is opened and
// with each update, and that the snapshot becomes newer even if nothing on the page has changed.
func TestPagesSayWhichMomentTheyShow(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", 3, "d-1")
	b.pool("q", 3)
	newest := func() string {
		var list struct{ Events []struct{ ID int64 } }
		b.call("GET", "/v1/events?page_size=1", nil, &list)
		return itoa(list.Events[0].ID)
	}
	moment := regexp.MustCompile(`<main id="main" data-moment="(\d+)\.1">`)
	for _, page := range []string{"/", "/?sort=held", "/pools/p", "/batches", "/batches/1", "/tasks", "/tasks/1", "/devices", "/activity", "/system"} {
		_, text, _ := b.get(page)
		if found := moment.FindStringSubmatch(text); found == nil || found[1] != newest() {
			t.Errorf("%s shows the moment %v, want %s: %.600s", page, found, newest(), text)
		}
	}
	other := b.stream("/pools/q")
	b.await(other, "the page", func(u update) bool { return u.Main != "" && u.Moment == newest()+".1" })
	b.grant("d-1")
	b.await(other, "the moment after a grant elsewhere", func(u update) bool { return u.Main == "" && u.Moment == newest()+".1" })
	tab := browse(t)
	tab.open(b.url + "/pools/q")
	b.call("PATCH", "/v1/pools/q", map[string]any{"capacity": 2}, nil)
	tab.until(`document.querySelectorAll(".grid .cell").length === 2 && document.getElementById("main").dataset.moment === "` + newest() + `.1"`)
}

// TestManyPagesAreOneReading checks that a page is read once for all its viewers. While nothing
// changes, only the log is read.
func TestManyPagesAreOneReading(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", 60, "d-1")
	streams := make([]<-chan update, 50)
	for i := range streams {
		streams[i] = b.stream("/")
		b.await(streams[i], "the page", func(u update) bool { return u.Main != "" })
	}
	views, logs := b.store.views.Load(), b.store.logs.Load()
	b.until("ten looks at the log", func() bool { return b.store.logs.Load() >= logs+10 })
	if n, m := b.store.views.Load()-views, b.store.logs.Load()-logs; n > m+2 {
		t.Errorf("%d readings for 50 pages in %d ticks", n, m)
	}
	b.grant("d-1")
	for _, s := range streams {
		b.await(s, "the grant", shows("<b>1</b></a> / 60"))
	}
}

// TestPageSaysWhenItIsNotUpToDate checks that a page shows that it is not up to date while the ledger
// cannot be read, and continues by itself afterwards.
func TestPageSaysWhenItIsNotUpToDate(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", 3, "d-1")
	updates := b.stream("/pools/p")
	b.await(updates, "the page", func(u update) bool { return u.Main != "" })
	b.store.down.Store(true)
	b.await(updates, "a word about the outage", func(u update) bool { return u.Error != "" })
	b.grant("d-1")
	b.store.down.Store(false)
	b.await(updates, "what was missed", shows(`data-device="d-1"`))
}

// TestSlowPagesHoldUpNoOther checks that pages that are slow to read do not delay other pages, however
// many they are. TestPagesThatHangKeepToTheSlowLane tests the time limit.
func TestSlowPagesHoldUpNoOther(t *testing.T) {
	t.Parallel()
	b, _ := onServers(t)
	b.pool("p", 60, devices(9)...)
	b.store.hangs.Store(true)
	slow := make([]<-chan update, 7)
	var opening sync.WaitGroup
	for i := range slow {
		opening.Go(func() { slow[i] = b.stream(fmt.Sprintf("/tasks?pool=p&window=%d", i)) })
	}
	light := b.stream("/pools/p")
	b.await(light, "the page", func(u update) bool { return u.Main != "" })
	opening.Wait()
	for i := range 6 {
		granted := b.grant(devices(9)[i])
		b.await(light, "the grant", shows(fmt.Sprintf(`id="slot-%d" class="cell fresh"`, granted.Slot)))
	}
	b.store.hangs.Store(false)
	b.await(slow[0], "the page that was slow", func(u update) bool { return u.Main != "" })
}

// TestStreamOfNoPage checks that only live pages have a stream: an export would be read again with each
// tick.
func TestStreamOfNoPage(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	b.pool("p", 3)
	for _, page := range []string{
		"", "https://evil.example/", "//evil.example/", "/v1/pools", "/live?page=/", "/sign-in", "/activity.csv", "/assets/live.js",
		"/new-pool", "/new-batch", "/pools/p/edit", "/cancel-tasks", "/pools//p", "/pools/../activity.csv", "/activity/",
	} {
		response, err := http.Get(b.url + "/live?page=" + url.QueryEscape(page))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close() // if it were a stream, reading it would not end
		if response.StatusCode != http.StatusBadRequest {
			t.Errorf("%q: %s", page, response.Status)
		}
	}
}

// TestPageThatPanicsEndsNothing checks that a page whose read panics shows an error, and other pages
// continue.
func TestPageThatPanicsEndsNothing(t *testing.T) {
	t.Parallel()
	var told atomic.Int64
	b := embedded(t, func(o *web.Options) {
		o.Panicked = func(string, *rescue.Panic) { told.Add(1) }
	})
	b.pool("p", 3, "d-1")
	updates, others := b.stream("/tasks?pool=p"), b.stream("/activity")
	b.await(updates, "the page", func(u update) bool { return u.Main != "" })
	b.await(others, "the other page", func(u update) bool { return u.Main != "" })
	b.store.panics.Store(true)
	b.grant("d-1")
	b.await(updates, "a word about the fault", func(u update) bool { return u.Error != "" })
	b.await(others, "the grant", shows("task.granted"))
	b.store.panics.Store(false)
	b.await(updates, "what was missed", shows(`<span class="state dispatched">dispatched</span></td>`))
	if told.Load() == 0 {
		t.Error("nobody was told of the panic")
	}
}

// TestPagesSayWhatTheAPISays checks that the numbers of an open page equal the numbers of the API while
// they change.
func TestPagesSayWhatTheAPISays(t *testing.T) {
	t.Parallel()
	b, _ := onServers(t)
	b.pool("p", 5, devices(30)...)
	updates := b.stream("/batches/1")
	var wait sync.WaitGroup
	for i := range 30 {
		wait.Go(func() {
			d := fmt.Sprintf("d-%d", i)
			g := b.grant(d)
			status := []string{"succeeded", "rejected"}[i%2]
			b.report(d, map[string]any{"accept": false, "results": []map[string]any{{"task": g.ID, "token": g.Token, "status": status, "error": "no <b>route</b>"}}})
		})
	}
	wait.Wait()
	var batch struct{ Counts map[string]int64 }
	b.call("GET", "/v1/batches/1", nil, &batch)
	for _, state := range store.TaskStates() {
		want := fmt.Sprintf(`<span class="state %s">%s</span> <b>%d</b>`, state, strings.ReplaceAll(string(state), "_", " "), batch.Counts[string(state)])
		_, text, _ := b.get("/batches/1")
		contains(t, text, want)
		_, text, _ = b.get("/tasks?pool=p")
		contains(t, text, want)
		_, text, _ = b.get("/tasks")
		contains(t, text, want)
	}
	if batch.Counts["succeeded"] != 15 || batch.Counts["failed"] != 15 {
		t.Fatalf("counts: %v", batch.Counts)
	}
	b.await(updates, "the last result", func(u update) bool {
		return shows(`succeeded</span> <b>15</b>`)(u) && shows(`failed</span> <b>15</b>`)(u) && shows(`<b>15</b></a></td><td class="text"><a href="/tasks?batch=1&amp;error=no`)(u)
	})
}
