package waiters

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/slots"
)

// steppedSemaphore is a fake semaphore. Each of its calls ends when the test sends to endCall. A call for a pool
// with the suffix "bad" fails. A lease with the prefix "held" holds a slot. A device gets the slot whose number is
// the length of the device's name.
type steppedSemaphore struct {
	Semaphore

	endCall    chan struct{}
	roundTrips [][]string // the calls of each round trip
}

func (s *steppedSemaphore) Node(_ context.Context, pool string) string { return pool[:1] }

func (s *steppedSemaphore) Serve(_ context.Context, calls []slots.Call) []slots.ExchangeResult {
	var texts []string
	served := make([]slots.ExchangeResult, len(calls))
	for i, c := range calls {
		text := fmt.Sprint(c.Pool, " ", c.Pace.ReportPeriod, " ", c.Leases)
		for _, r := range c.Requests {
			text += " " + r.Device
			served[i].Acquisitions = append(served[i].Acquisitions, slots.Acquisition{Status: slots.StatusAcquired, Slot: len(r.Device)})
		}
		for _, lease := range c.Leases {
			served[i].Freed = append(served[i].Freed, strings.HasPrefix(lease, "held"))
		}
		if strings.HasSuffix(c.Pool, "bad") {
			served[i] = slots.ExchangeResult{Err: slots.ErrUnavailable}
		}
		texts = append(texts, text)
	}
	s.roundTrips = append(s.roundTrips, texts)
	<-s.endCall
	return served
}

// TestPoolsAreServedTogether checks requests for several pools of one Redis node that arrive while a call is in
// progress. They are sent together in the next call, with one script for each pool and report period, and each
// request gets its own outcome.
func TestPoolsAreServedTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &steppedSemaphore{endCall: make(chan struct{})}
		n := New(Config{Semaphore: s, ReportPeriod: time.Second, Meters: meters.New(prometheus.NewRegistry()), Now: time.Now})
		acquire := func(pool, device string, period time.Duration, want error) {
			go func() {
				got, err := n.Slots.Acquire(t.Context(), pool, period, slots.Request{Device: device})
				if !errors.Is(err, want) || err == nil && got.Slot != len(device) {
					t.Errorf("%s in %s: %+v, %v", device, pool, got, err)
				}
			}()
			synctest.Wait()
		}
		release := func(pool string, freed []bool, leases ...string) {
			go func() {
				if got, err := n.Slots.Release(t.Context(), pool, leases); err != nil || !slices.Equal(got, freed) {
					t.Errorf("%v in %s: %v, %v", leases, pool, got, err)
				}
			}()
			synctest.Wait()
		}
		acquire("a1", "first", 0, nil)
		acquire("a1", "d", 0, nil)
		acquire("a-bad", "dd", 0, slots.ErrUnavailable)
		release("a2", []bool{true, false}, "held1", "gone1")
		acquire("a1", "ddd", time.Minute, nil)
		release("a1", []bool{false}, "gone2")
		acquire("a1", "dddd", 0, nil)
		release("a2", []bool{true}, "held2")
		acquire("b", "other node", 0, nil)
		for range 3 {
			s.endCall <- struct{}{}
			synctest.Wait()
		}
		want := [][]string{
			{"a1 1s [] first"},
			{"b 1s [] other node"},
			{"a1 1s [gone2] d dddd", "a-bad 1s [] dd", "a2 1s [held1 gone1 held2]", "a1 1m0s [] ddd"},
		}
		if !slices.EqualFunc(s.roundTrips, want, slices.Equal) {
			t.Errorf("served %q, want %q", s.roundTrips, want)
		}
	})
}
