package web_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/operators/web"
)

// TestNothingIsReadForNobody checks a dashboard without an open page. It must not read the events of the log, and must still count each
// grant once.
func TestNothingIsReadForNobody(t *testing.T) {
	t.Parallel()
	var clock atomic.Int64 // ms
	clock.Store(time.Now().UnixMilli())
	b := startEmbedded(t, func(o *web.Options) { o.Now = func() time.Time { return time.UnixMilli(clock.Load()) } })
	b.createPool("p", 5, deviceIDs(6)...)
	waitForGrants := func(n int64) {
		b.Helper()
		b.Await(fmt.Sprintf("%d counted grants", n), func() bool {
			clock.Add(100) // the grants of this test stay in the last minute
			return b.web.RecentGrants("p") >= n
		})
		if got := b.web.RecentGrants("p"); got != n {
			t.Errorf("%d grants are counted, want %d", got, n)
		}
	}
	for i := range 3 {
		b.ReportUntilGranted(deviceIDs(6)[i])
	}
	waitForGrants(3)
	if read := b.store.eventReads.Load(); read != 0 {
		t.Errorf("the log was read %d times for nobody", read)
	}
	updates := b.openStream("/pools/p")
	b.awaitUpdate(updates, "the page", func(u pageUpdate) bool { return u.Main != "" })
	b.ReportUntilGranted("d-3")
	b.awaitUpdate(updates, "the grant", updateContains(`data-device="d-3"`))
	waitForGrants(4)
	if b.store.eventReads.Load() == 0 {
		t.Error("the log was not read for an open page")
	}
}
