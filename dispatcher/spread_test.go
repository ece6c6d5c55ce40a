package dispatcher_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
)

// After an outage, all 300 devices of a fleet report at once. The replies ask them to report again at different
// times: at most a seventh of them within any one second, whatever the reason in the reply is.
func TestAStormHasNoEcho(t *testing.T) {
	t.Parallel()
	const fleet, maxPerSecond = 300, 300 / 7
	for name, test := range map[string]struct {
		prepare func(b *testBench, names []string)
		want    devices.Reason
	}{
		"nothing to do": {func(*testBench, []string) {}, devices.ReasonNone},
		"a full pool": {func(b *testBench, names []string) {
			b.createPool("a", 5, minute)
			b.createBatch("a", nil, names...)
			b.reconcile()
			for i := range 5 {
				b.requestSlot("a", fmt.Sprint("holds", i), int64(1_000_000+i), 0)
			}
		}, devices.ReasonFull},
		"a pool that is paused": {func(b *testBench, names []string) {
			b.createPool("a", 5, minute)
			in := b.createBatch("a", nil, names...)
			_, err := b.store.PauseBatch(b.ctx, "op", in, "")
			b.must(err)
		}, devices.ReasonPaused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			draw := rand.New(rand.NewPCG(7, 7)) // the generator is safe here because the reports are sequential
			b := newServerBench(t, func(c *dispatcher.Config) { c.Jitter = draw.Float64 })
			var names []string
			for i := range fleet {
				names = append(names, fmt.Sprint("d", i))
			}
			test.prepare(b, names)
			b.reconcile()
			seconds := make(map[time.Duration]int)
			for _, device := range names {
				reply := b.expectReason(device, `{}`, test.want)
				seconds[time.Duration(reply.ReportAfterMS)*time.Millisecond/time.Second]++
			}
			for second, n := range seconds {
				if n > maxPerSecond {
					t.Errorf("%d of %d devices are told to come %d s later", n, fleet, second)
				}
			}
			t.Logf("spread over %d seconds", len(seconds))
		})
	}
}
