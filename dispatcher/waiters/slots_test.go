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

// oneByOne is a semaphore whose calls end when the test sends to ends. A pool with the suffix "bad"
// fails. A lease with the prefix "held" holds a slot. A device gets the slot whose number is the
// length of its name.
type oneByOne struct {
	Semaphore

	ends   chan struct{}
	served [][]string // the calls of each round trip
}

func (s *oneByOne) Node(_ context.Context, pool string) string { return pool[:1] }

func (s *oneByOne) Serve(_ context.Context, calls []slots.Call) []slots.Served {
	var texts []string
	served := make([]slots.Served, len(calls))
	for i, c := range calls {
		text := fmt.Sprint(c.Pool, " ", c.Pace.Period, " ", c.Leases)
		for _, r := range c.Requests {
			text += " " + r.Device
			served[i].Got = append(served[i].Got, slots.Acquisition{Status: slots.StatusAcquired, Slot: len(r.Device)})
		}
		for _, lease := range c.Leases {
			served[i].Freed = append(served[i].Freed, strings.HasPrefix(lease, "held"))
		}
		if strings.HasSuffix(c.Pool, "bad") {
			served[i] = slots.Served{Err: slots.ErrUnavailable}
		}
		texts = append(texts, text)
	}
	s.served = append(s.served, texts)
	<-s.ends
	return served
}

// TestPoolsAreServedTogether checks that requests for the pools of a node that arrive while a call is
// in progress are sent in the next call, with one script for each pool and period, and that each
// request gets its own outcome.
func TestPoolsAreServedTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &oneByOne{ends: make(chan struct{})}
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
			s.ends <- struct{}{}
			synctest.Wait()
		}
		want := [][]string{
			{"a1 1s [] first"},
			{"b 1s [] other node"},
			{"a1 1s [gone2] d dddd", "a-bad 1s [] dd", "a2 1s [held1 gone1 held2]", "a1 1m0s [] ddd"},
		}
		if !slices.EqualFunc(s.served, want, slices.Equal) {
			t.Errorf("served %q, want %q", s.served, want)
		}
	})
}
