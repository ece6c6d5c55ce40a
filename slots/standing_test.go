package slots_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/fleetslots/dispatcher/slots"
)

// Which of a device's tasks is said to come first is the one that it is given.
func TestTaskThatIsSaidToComeFirstIsGiven(t *testing.T) {
	t.Parallel()
	onLines(t, func(t *testing.T, s *server) {
		t.Helper()
		s.slowInLua(t)
		pool := s.poolOf(t, 40)
		random := rand.New(rand.NewPCG(1, 2))
		for task := range int64(20) { // what the batches hold differs
			s.ask(t, pool, sleepyPace(), slots.Want{Batch: 1 + random.Int64N(3), Weight: 1, Task: 1000 + task})
		}
		for round := range int64(20) {
			device := fmt.Sprintf("x%d", round)
			var wants []slots.Want
			var waiters []slots.Waiter
			for i := range 4 {
				w := slots.Want{Batch: 1 + random.Int64N(4), Weight: 1 + int(round)%2, Priority: random.IntN(2), Task: 10*round + int64(i)}
				waiters = append(waiters, slots.Waiter{Device: device, Batch: w.Batch, Task: w.Task, Weight: w.Weight, Priority: w.Priority})
				w.Lease, w.TTL = fmt.Sprintf("x%d", w.Task), patientPace().Hold
				wants = append(wants, w)
			}
			standing, err := s.Standing(t.Context(), pool, waiters)
			if err != nil {
				t.Fatal(err)
			}
			got, _, err := s.Acquire(t.Context(), pool, sleepyPace(), []slots.Request{asking(device, wants...)})
			if err != nil || got[0].Status != slots.StatusAcquired {
				t.Fatal(got, err)
			}
			for i, standing := range standing {
				if standing.First != (i == got[0].Want) {
					t.Errorf("task %d: %+v, and %d was given: %+v", wants[i].Task, standing, wants[got[0].Want].Task, wants)
				}
			}
		}
	})
}
