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

// TestSilentDevicesAreFoundPageByPage checks the list of silent devices: it is shown page by page, and no page is
// long.
func TestSilentDevicesAreFoundPageByPage(t *testing.T) {
	t.Parallel()
	b := startEmbedded(t)
	for i := range 60 {
		b.Do("POST", "/v1/devices", map[string]any{"id": fmt.Sprintf("s-%02d", i), "tags": map[string]string{"site": "berlin"}}, nil)
	}
	b.sendReport("s-10", map[string]any{"id": "g"})
	b.Must(b.Dispatcher.Seen.Flush(b.Context()))
	const row = `<tr id="device-s-`
	_, text, _ := b.getPage("/devices?show=silent&tag=site:berlin")
	expectContains(t, text, `id="device-s-50"`, "never")
	next := regexp.MustCompile(`rel="next" href="([^"]+)"`).FindStringSubmatch(text)
	if n := strings.Count(text, row); n != 50 || next == nil || strings.Contains(text, `id="device-s-10"`) {
		t.Fatalf("%d rows, next: %v; want 50, none of them the one that was seen, and more to come", n, next)
	}
	_, text, _ = b.getPage(strings.ReplaceAll(next[1], "&amp;", "&"))
	if n := strings.Count(text, row); n != 9 || strings.Contains(text, `rel="next"`) {
		t.Errorf("the last page has %d rows: %s", n, text)
	}
	expectContains(t, text, "First devices", `value="site:berlin"`)
	for _, bad := range []string{"tag=berlin", "prefix=%21", "page=!"} {
		if status, text, _ := b.getPage("/devices?show=silent&" + bad); status != 422 {
			t.Errorf("%s: %d %s", bad, status, text)
		}
	}
}

// TestTheListOfDevicesFollows checks an open list of devices: it shows new last_seen times although they have no
// event. Otherwise an open page would show healthy devices as silent.
func TestTheListOfDevicesFollows(t *testing.T) {
	t.Parallel()
	var clock atomic.Int64 // ms
	clock.Store(time.Now().UnixMilli())
	b := startEmbedded(t, func(o *web.Options) { o.Now = func() time.Time { return time.UnixMilli(clock.Load()) } })
	updates := b.openStream("/devices")
	b.awaitUpdate(updates, "the page", func(u pageUpdate) bool { return u.Main != "" })
	b.sendReport("d-new", map[string]any{"accept": false})
	clock.Add(10_000)
	b.awaitUpdate(updates, "the device", updateContains(`href="/devices/d-new"`))
}
