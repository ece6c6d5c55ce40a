package web_test

import (
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/operators/web"
)

// TestSilentDevicesAreFoundPageByPage checks that silent devices are listed page by page, and that no
// page is long.
func TestSilentDevicesAreFoundPageByPage(t *testing.T) {
	t.Parallel()
	b := embedded(t)
	for i := range 60 {
		b.call("POST", "/v1/devices", map[string]any{"id": fmt.Sprintf("s-%02d", i), "tags": map[string]string{"site": "berlin"}}, nil)
	}
	b.report("s-10", map[string]any{"id": "g"})
	if err := b.dispatcher.Seen.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	const row = `<tr id="device-s-`
	_, text, _ := b.get("/devices?show=silent&tag=site:berlin")
	contains(t, text, `id="device-s-50"`, "never")
	next := regexp.MustCompile(`rel="next" href="([^"]+)"`).FindStringSubmatch(text)
	if n := strings.Count(text, row); n != 50 || next == nil || strings.Contains(text, `id="device-s-10"`) {
		t.Fatalf("%d rows, next: %v; want 50, none of them the one that was seen, and more to come", n, next)
	}
	_, text, _ = b.get(strings.ReplaceAll(next[1], "&amp;", "&"))
	if n := strings.Count(text, row); n != 9 || strings.Contains(text, `rel="next"`) {
		t.Errorf("the last page has %d rows: %s", n, text)
	}
	contains(t, text, "First devices", `value="site:berlin"`)
	for _, bad := range []string{"tag=berlin", "prefix=%21", "page=!"} {
		if status, text, _ := b.get("/devices?show=silent&" + bad); status != 422 {
			t.Errorf("%s: %d %s", bad, status, text)
		}
	}
}

// TestTheListOfDevicesFollows checks that the list of devices follows their last_seen times without an
// event. Otherwise an open page would show healthy devices as silent.
func TestTheListOfDevicesFollows(t *testing.T) {
	t.Parallel()
	var clock atomic.Int64 // ms
	clock.Store(time.Now().UnixMilli())
	b := embedded(t, func(o *web.Options) { o.Now = func() time.Time { return time.UnixMilli(clock.Load()) } })
	updates := b.stream("/devices")
	b.await(updates, "the page", func(u update) bool { return u.Main != "" })
	b.report("d-new", map[string]any{"accept": false})
	clock.Add(10_000)
	b.await(updates, "the device", shows(`href="/devices/d-new"`))
}
