package web

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/store"
)

// TestPagesThatHangKeepToTheSlowLane checks that pages whose reading hangs do not delay other pages, however many of them hang. The clock
// is virtual (synctest): with a real clock on a busy machine, the other page could take longer than quickReadLimit and go to the slow lane,
// too.
func TestPagesThatHangKeepToTheSlowLane(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		light := viewKey{address: "/pools/p"}
		h := &hub{
			now: time.Now, baseCtx: ctx, views: map[viewKey]*view{},
			quickReads: make(chan struct{}, maxQuickReads), slowReads: make(chan struct{}, maxSlowReads),
			render: func(ctx context.Context, key viewKey) (*renderedPage, error) {
				if key != light {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return &renderedPage{watch: updateTrigger{allEvents: true}}, nil
			},
		}
		var opening sync.WaitGroup
		for i := range 7 {
			opening.Go(func() { h.addViewer(viewKey{address: fmt.Sprintf("/tasks?window=%d", i)}) })
		}
		opening.Go(func() { h.addViewer(light) })
		opening.Wait()
		for n := range 30 {
			before := h.currentState(light)
			h.startReads([]store.Event{{Kind: "task.granted"}}, false)
			await.Receive(t, before.replaced, fmt.Sprintf("the page that is quick was not read at tick %d", n))
			<-time.After(time.Second)
		}
		end()
	})
}
