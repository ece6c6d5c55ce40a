package web_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/operators/web"
)

// TestNothingIsReadForNobody checks a dashboard without an open page. It must not read the events of the log, and its charts must still
// have each grant once.
func TestNothingIsReadForNobody(t *testing.T) {
	t.Parallel()
	var clock atomic.Int64 // ms
	clock.Store(time.Now().UnixMilli())
	b := startEmbedded(t, func(o *web.Options) { o.Now = func() time.Time { return time.UnixMilli(clock.Load()) } })
	b.createPool("p", 5, deviceIDs(6)...)
	charted := func() (points, grants int) {
		at, _, granted, _ := b.web.ChartPoints("p")
		return len(at), total(granted)
	}
	point := func() {
		before, _ := charted()
		clock.Add(5000)
		b.waitUntil("a point", func() bool {
			now, _ := charted()
			return now > before
		})
	}
	point()
	for i := range 3 {
		b.reportUntilGranted(deviceIDs(6)[i])
		point()
	}
	b.waitUntil("the last grant in the chart", func() bool {
		point()
		_, grants := charted()
		return grants >= 3
	})
	if read := b.store.eventReads.Load(); read != 0 {
		t.Errorf("the log was read %d times for nobody", read)
	}
	updates := b.openStream("/pools/p")
	b.awaitUpdate(updates, "the page", func(u pageUpdate) bool { return u.Main != "" })
	b.reportUntilGranted("d-3")
	b.awaitUpdate(updates, "the grant", updateContains(`data-device="d-3"`))
	for range 3 {
		point()
	}
	if _, grants := charted(); grants != 4 || b.store.eventReads.Load() == 0 {
		t.Errorf("%d grants in the chart, want 4; the log was read %d times", grants, b.store.eventReads.Load())
	}
}
