package dispatcher_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/slots"
)

// linedUp is a semaphore with many queues, of which only the last one is due.
type linedUp struct {
	dispatcher.Semaphore
	waiting []string

	mu     sync.Mutex
	looked map[string]int
}

func (s *linedUp) Queues(context.Context, []string) (waiting, due []string, err error) {
	return s.waiting, s.waiting[len(s.waiting)-1:], nil
}

func (s *linedUp) OfferSlots(_ context.Context, pool string, _ slots.Pace, _ []slots.Update) (slots.QueueState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked[pool]++
	return slots.QueueState{}, nil
}

// Each pass serves the pools that are due and some of the other pools, so that after some passes each pool
// had its turn.
func TestAPassLooksAtWhatIsDue(t *testing.T) {
	t.Parallel()
	const pools, passes = 200, 4
	s := &linedUp{looked: make(map[string]int)}
	for i := range pools {
		s.waiting = append(s.waiting, fmt.Sprintf("%03d", i))
	}
	b := light(t, func(c *dispatcher.Config) { c.Semaphore = s })
	for pass := 1; pass <= passes; pass++ {
		b.must(b.Waiters.Filler.FillAll(b.ctx))
		if n := s.looked[s.waiting[pools-1]]; n != pass {
			t.Fatalf("what is due was looked at %d times in %d passes", n, pass)
		}
		if pass == 1 && len(s.looked) > pools/2 {
			t.Errorf("one pass looked at %d pools", len(s.looked))
		}
	}
	if len(s.looked) != pools {
		t.Errorf("%d of %d pools had their turn in %d passes", len(s.looked), pools, passes)
	}
}
