package web_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/operators/web"
)

// TestNothingIsReadForNobody checks that the events of the log are not read while no page is open, and
// that the charts are complete anyway: each grant is in them once.
func TestNothingIsReadForNobody(t *testing.T) {
	t.Parallel()
	var clock atomic.Int64 // ms
	clock.Store(time.Now().UnixMilli())
	b := embedded(t, func(o *web.Options) { o.Now = func() time.Time { return time.UnixMilli(clock.Load()) } })
	b.pool("p", 5, devices(6)...)
	charted := func() (points, grants int) {
		at, _, granted, _ := b.web.Held("p")
		return len(at), total(granted)
	}
	point := func() {
		before, _ := charted()
		clock.Add(5000)
		b.until("a point", func() bool {
			now, _ := charted()
			return now > before
		})
	}
	point()
	for i := range 3 {
		b.grant(devices(6)[i])
		point()
	}
	b.until("the last grant in the chart", func() bool {
		point()
		_, grants := charted()
		return grants >= 3
	})
	if read := b.store.events.Load(); read != 0 {
		t.Errorf("the log was read %d times for nobody", read)
	}
	updates := b.stream("/pools/p")
	b.await(updates, "the page", func(u update) bool { return u.Main != "" })
	b.grant("d-3")
	b.await(updates, "the grant", shows(`data-device="d-3"`))
	for range 3 {
		point()
	}
	if _, grants := charted(); grants != 4 || b.store.events.Load() == 0 {
		t.Errorf("%d grants in the chart, want 4; the log was read %d times", grants, b.store.events.Load())
	}
}
