package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/slots"
)

// manyQueuesSemaphore is a semaphore with many queues, of which only the last one is due.
type manyQueuesSemaphore struct {
	dispatcher.Semaphore
	waitingPools []string
	readErr      error // error of FindWaitingPools

	mu         sync.Mutex
	offerCalls map[string]int
}

func (s *manyQueuesSemaphore) FindWaitingPools(context.Context, []string) (waitingPools, duePools []string, err error) {
	return s.waitingPools, s.waitingPools[len(s.waitingPools)-1:], s.readErr
}

func (s *manyQueuesSemaphore) OfferSlots(_ context.Context, pool string, _ slots.Pace, _ []slots.Update) (slots.QueueState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offerCalls[pool]++
	return slots.QueueState{}, nil
}

// There are many pools with queues, and only the last pool is due. Each pass must serve the pools that are due, and
// some of the other pools. After some passes, each pool must have been served.
func TestAPassLooksAtWhatIsDue(t *testing.T) {
	t.Parallel()
	const pools, passes = 200, 4
	s := &manyQueuesSemaphore{offerCalls: make(map[string]int)}
	for i := range pools {
		s.waitingPools = append(s.waitingPools, fmt.Sprintf("%03d", i))
	}
	b := newLightBench(t, func(c *dispatcher.Config) { c.Semaphore = s })
	for pass := 1; pass <= passes; pass++ {
		b.must(b.Waiters.Filler.FillAllPools(b.ctx))
		if n := s.offerCalls[s.waitingPools[pools-1]]; n != pass {
			t.Fatalf("what is due was looked at %d times in %d passes", n, pass)
		}
		if pass == 1 && len(s.offerCalls) > pools/2 {
			t.Errorf("one pass looked at %d pools", len(s.offerCalls))
		}
	}
	if len(s.offerCalls) != pools {
		t.Errorf("%d of %d pools had their turn in %d passes", len(s.offerCalls), pools, passes)
	}
}

// A node of a Redis Cluster does not answer, so only the queues of the other nodes can be read. Each pass must serve these queues, and must
// report the error.
func TestAPassServesTheQueuesThatItCouldRead(t *testing.T) {
	t.Parallel()
	s := &manyQueuesSemaphore{waitingPools: []string{"a", "b"}, readErr: errDown, offerCalls: make(map[string]int)}
	b := newLightBench(t, func(c *dispatcher.Config) { c.Semaphore = s })
	if err := b.Waiters.Filler.FillAllPools(b.ctx); !errors.Is(err, errDown) {
		t.Errorf("%v, want %v", err, errDown)
	}
	if s.offerCalls["a"] != 1 || s.offerCalls["b"] != 1 {
		t.Errorf("served %v, want each queue once", s.offerCalls)
	}
}
