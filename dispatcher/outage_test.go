package dispatcher_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
)

// TestDevicesComeInTheirPeriodDuringAnOutage checks when devices are asked to report again during an outage: after
// some seconds at its beginning, and after about half a report period once it lasts longer. More frequent reports
// of a whole fleet would only add load.
func TestDevicesComeInTheirPeriodDuringAnOutage(t *testing.T) {
	t.Parallel()
	const period = 10 * time.Minute
	for _, call := range []string{"Views", "Acquire"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			var passed atomic.Int64
			b, spies := newSpiedBench(t, func(c *dispatcher.Config) {
				c.ReportPeriod, c.Now = period, func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
			})
			b.createPool("a", 5, minute)
			b.createBatch("a", nil, "d1")
			refused := func() time.Duration {
				t.Helper()
				reply, err := b.tryReport("d1", `{"id":"1"}`)
				if err != nil {
					return b.DelayAfterRefusal(devices.ReasonUnavailable)
				}
				if reply.Reason != devices.ReasonUnavailable {
					t.Errorf("reply %+v, want unavailable", reply)
				}
				return time.Duration(reply.ReportAfterMS) * time.Millisecond
			}
			spies.failCalls(call)
			if got := refused(); got != 3*time.Second {
				t.Errorf("at first after %s, want seconds", got)
			}
			passed.Add(int64(5 * time.Second))
			if got := refused(); got != period/2 {
				t.Errorf("later after %s, want half a period in the mean", got)
			}
			spies.removeHooks()
			b.expectGrant("d1")
			if got := b.DelayAfterRefusal(devices.ReasonUnavailable); got != 3*time.Second {
				t.Errorf("afterwards after %s", got)
			}
		})
	}
}

// TestARequestThatEndsIsNoOutage checks an operator's request that is cancelled: it does not count as an outage, so
// devices are not delayed.
func TestARequestThatEndsIsNoOutage(t *testing.T) {
	t.Parallel()
	runWithMarks(t, func(b *testBench, _ *storeSpies, clock *stoppedClock) {
		b.t.Helper()
		ended, end := context.WithCancel(b.ctx)
		end()
		if mark := b.Explainer.DeviceMark(ended, "d"); mark != nil {
			b.t.Errorf("%+v, and the request had ended", mark)
		}
		before := b.DelayAfterRefusal(devices.ReasonUnavailable)
		clock.advance(time.Minute)
		if got := b.DelayAfterRefusal(devices.ReasonUnavailable); got != before {
			b.t.Errorf("a minute later devices are put off for %s, not %s", got, before)
		}
	})
}
