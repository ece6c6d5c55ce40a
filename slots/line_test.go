package slots_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/fleetslots/dispatcher/slots"
)

// patientPace has a refused device expected for 20 s around one second from now.
func patientPace() slots.Pace {
	return slots.Pace{Hold: 800 * time.Second, Soonest: time.Second, Longest: time.Second}
}

// sleepyPace has it come in an hour: no place is kept for it.
func sleepyPace() slots.Pace {
	return slots.Pace{Hold: 800 * time.Second, Soonest: time.Hour, Longest: time.Hour}
}

// onLines runs a case with a patient semaphore on every kind of Redis.
func onLines(t *testing.T, test func(t *testing.T, s *server)) {
	t.Helper()
	onEach(t, func(t *testing.T, s *server) {
		t.Helper()
		s.Semaphore = slots.NewPatient(s.client)
		test(t, s)
	})
}

// due changes when a waiter was told to come.
func (s *server) due(t rapid.TB, pool, device string, in time.Duration) {
	t.Helper()
	now, err := s.client.Time(context.Background()).Result()
	if err != nil {
		t.Fatal(err)
	}
	due := redis.Z{Member: device, Score: float64(now.Add(in).UnixMilli())}
	if err := s.client.ZAddXX(context.Background(), "slots:{"+pool+"}:due", due).Err(); err != nil {
		t.Fatal(err)
	}
}

// ask asks for a slot for one task of a batch; the device and the lease are the task's.
func (s *server) ask(t *testing.T, pool string, pace slots.Pace, w slots.Want) slots.Acquisition {
	t.Helper()
	w.TTL = time.Hour
	if w.Lease == "" {
		w.Lease = strconv.FormatInt(w.Task, 10)
	}
	got, _, err := s.Acquire(t.Context(), pool, pace, []slots.Request{asking(fmt.Sprintf("d%d", w.Task), w)})
	if err != nil {
		t.Fatal(err)
	}
	return got[0]
}

// passOn frees the slots of tasks and has all others ask, in any order, until
// somebody has each: it returns the tasks that do, in the order of their grants.
func (s *server) passOn(t *testing.T, pool string, all map[int64]slots.Want, from ...int64) (granted []int64) {
	t.Helper()
	for _, task := range from {
		s.release(t, pool, strconv.FormatInt(task, 10))
		delete(all, task)
	}
	for range len(from) {
		var waiting []slots.Want
		for _, w := range all {
			waiting = append(waiting, w)
		}
		rand.Shuffle(len(waiting), func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
		for _, w := range waiting {
			if s.ask(t, pool, patientPace(), w).Status == slots.StatusAcquired {
				granted = append(granted, w.Task)
				delete(all, w.Task)
				break
			}
		}
	}
	return granted
}

// Whoever asks first: places go to the batches in turn, the one with the lowest
// held / weight first, and inside a batch by priority, then by age.
func TestPlacesGoByShareThenPriorityThenAge(t *testing.T) {
	t.Parallel()
	onLines(t, func(t *testing.T, s *server) {
		t.Helper()
		pool := s.poolOf(t, 6)
		all := map[int64]slots.Want{}
		for task := int64(100); task < 108; task++ { // an old batch, of which six hold everything
			all[task] = slots.Want{Batch: 1, Weight: 1, Task: task}
			if got := s.ask(t, pool, patientPace(), all[task]); (got.Status == slots.StatusAcquired) != (task < 106) {
				t.Fatalf("task %d: %+v", task, got)
			}
		}
		for task := int64(200); task < 205; task++ { // a younger one with twice the weight
			all[task] = slots.Want{Batch: 2, Weight: 2, Task: task, Priority: map[int64]int{203: 5}[task]}
			s.ask(t, pool, patientPace(), all[task])
		}
		for i := range int64(6) { // none of those that hold ask again
			delete(all, 100+i)
		}
		var got []int64
		for i := range int64(6) {
			got = append(got, s.passOn(t, pool, all, 100+i)...)
		}
		// Held 5:0, 4:1, 3:2 and 2:3, by weight 5:0, 4:0.5, 3:1 and 2:1.5; then 1:2, twice.
		diff(t, "order", got, []int64{203, 200, 201, 202, 106, 107})
	})
}

func TestMoreBatchesThanPlacesTakeTurns(t *testing.T) {
	t.Parallel()
	onLines(t, func(t *testing.T, s *server) {
		t.Helper()
		s.slowInLua(t)
		for _, capacity := range []int{1, 3} {
			t.Run(strconv.Itoa(capacity), func(t *testing.T) {
				t.Parallel()
				s.takeTurns(t, capacity)
			})
		}
	})
}

func (s *server) takeTurns(t *testing.T, capacity int) {
	t.Helper()
	const batches, rounds = 6, 4
	pool, all, grants := s.poolOf(t, capacity), map[int64]slots.Want{}, map[int64]int{}
	next := int64(0)
	add := func(batch int64) {
		next++
		task := 1000*batch + next
		all[task] = slots.Want{Batch: batch, Weight: 1, Task: task}
	}
	var holds []int64
	for batch := range int64(batches) {
		add(batch)
		add(batch)
	}
	for _, w := range all {
		if s.ask(t, pool, patientPace(), w).Status == slots.StatusAcquired {
			holds = append(holds, w.Task)
		}
	}
	for range batches * rounds {
		add(holds[0] / 1000)
		granted := s.passOn(t, pool, all, holds[0])
		if len(granted) != 1 {
			t.Fatalf("nobody got the place that %d left", holds[0])
		}
		holds = append(holds[1:], granted...)
		grants[granted[0]/1000]++
	}
	for batch := range int64(batches) {
		if n := grants[batch]; n < rounds-1 || n > rounds+1 {
			t.Fatalf("grants by batch: %v, want %d each", grants, rounds)
		}
	}
}

// Weights hold in a pool of one place as well: there they are shares of the turns.
func TestWeightsAreSharesOfTheTurnsOfOnePlace(t *testing.T) {
	t.Parallel()
	onLines(t, func(t *testing.T, s *server) {
		t.Helper()
		s.slowInLua(t)
		pool, all := s.poolOf(t, 1), map[int64]slots.Want{}
		for i := range int64(20) {
			all[100+i] = slots.Want{Batch: 1, Weight: 1, Task: 100 + i}
			all[200+i] = slots.Want{Batch: 2, Weight: 2, Task: 200 + i}
		}
		for _, w := range all {
			s.ask(t, pool, patientPace(), w)
		}
		holder, grants := s.snapshot(t, pool).Leases[0], map[int64]int{}
		last, _ := strconv.ParseInt(holder.ID, 10, 64)
		for range 18 {
			last = s.passOn(t, pool, all, last)[0]
			grants[last/100]++
		}
		if grants[2] < 11 || grants[2] > 13 {
			t.Errorf("grants by batch %v of 18, want 6 and 12", grants)
		}
	})
}

// A small batch behind a large one: its first task gets the first place that
// becomes free, and it goes on until it holds as much.
func TestSmallBatchGetsTheFirstPlacesBehindALargeOne(t *testing.T) {
	t.Parallel()
	s := onRedis(t)
	s.Semaphore = slots.NewPatient(s.client)
	const capacity = 60
	large := 50_000
	if testing.Short() {
		large = 5_000
	}
	pool := s.poolOf(t, capacity)
	reqs := make([]slots.Request, large)
	for i := range reqs {
		w := slots.Want{Lease: strconv.Itoa(i), TTL: time.Hour, Batch: 1, Task: int64(i), Priority: 9}
		reqs[i] = asking(fmt.Sprintf("d%d", i), w)
	}
	if _, _, err := s.Acquire(t.Context(), pool, patientPace(), reqs); err != nil {
		t.Fatal(err)
	}
	for i := range int64(3) {
		got := s.ask(t, pool, patientPace(), slots.Want{Batch: 2, Task: 90_000 + i})
		if got.Status != slots.StatusFull || got.Position != int(i)+1 {
			t.Fatalf("behind %d: %+v", large, got)
		}
	}
	var got []string
	for freed := range 4 {
		s.release(t, pool, strconv.Itoa(freed))
		for _, task := range []int64{60, int64(large) - 9, 90_002, 90_001, 90_000, 61} {
			w := slots.Want{Batch: 1, Task: task, Priority: 9}
			if task >= 90_000 {
				w.Batch, w.Priority = 2, 0
			}
			if s.ask(t, pool, patientPace(), w).Status == slots.StatusAcquired {
				got = append(got, fmt.Sprint(task))
			}
		}
	}
	diff(t, "who got the places", got, []string{"90000", "90001", "90002", "60"})
}

// A first waiter that does not come in time is passed over, but only so often:
// then a place is kept for it.
func TestPassedOverSoOftenOnly(t *testing.T) {
	t.Parallel()
	onLines(t, func(t *testing.T, s *server) {
		t.Helper()
		for _, capacity := range []int{1, 5} {
			pool := t.Name() + strconv.Itoa(capacity)
			s.restore(t, pool, slots.Config{Capacity: capacity, Version: 1})
			for i := range int64(capacity) {
				s.ask(t, pool, sleepyPace(), slots.Want{Batch: 1, Task: 10 + i})
			}
			s.ask(t, pool, sleepyPace(), slots.Want{Batch: 1, Task: 1})
			s.due(t, pool, "d1", 40*time.Second) // beyond the usual time, within the longest
			passed := 0
			for ; passed < 100; passed++ {
				s.release(t, pool, strconv.Itoa(10+passed))
				if s.ask(t, pool, sleepyPace(), slots.Want{Batch: 1, Task: int64(10 + capacity + passed)}).Status == slots.StatusFull {
					break
				}
			}
			if want := max(capacity, 3); passed != want {
				t.Errorf("passed over %d times, want %d", passed, want)
			}
			diff(t, "when it comes", s.ask(t, pool, sleepyPace(), slots.Want{Batch: 1, Task: 1}).Status, slots.StatusAcquired)
		}
	})
}

// In a large pool a place is kept longer for a batch that has none.
func TestBatchWithNothingIsWaitedFor(t *testing.T) {
	t.Parallel()
	onLines(t, func(t *testing.T, s *server) {
		t.Helper()
		for capacity, want := range map[int]slots.Status{19: slots.StatusAcquired, 20: slots.StatusFull} {
			pool := t.Name() + strconv.Itoa(capacity)
			s.restore(t, pool, slots.Config{Capacity: capacity, Version: 1})
			for i := range int64(capacity) {
				s.ask(t, pool, sleepyPace(), slots.Want{Batch: 1, Task: 10 + i})
			}
			s.ask(t, pool, sleepyPace(), slots.Want{Batch: 2, Task: 1})
			s.due(t, pool, "d1", 40*time.Second) // beyond the usual time, within the longest
			s.release(t, pool, "10")
			diff(t, fmt.Sprintf("one more of the others, of %d places", capacity), s.ask(t, pool, sleepyPace(), slots.Want{Batch: 1, Task: 90}).Status, want)
		}
	})
}

// Who sleeps keeps no place free, and loses no place in line by it.
func TestSleepersArePassedOver(t *testing.T) {
	t.Parallel()
	onLines(t, func(t *testing.T, s *server) {
		t.Helper()
		pool := s.poolOf(t, 1)
		s.ask(t, pool, sleepyPace(), slots.Want{Batch: 1, Task: 1})
		s.ask(t, pool, sleepyPace(), slots.Want{Batch: 1, Task: 2})
		s.release(t, pool, "1")
		diff(t, "who asks", s.ask(t, pool, sleepyPace(), slots.Want{Batch: 1, Task: 3}).Status, slots.StatusAcquired)
		diff(t, "the sleeper's position", s.ask(t, pool, sleepyPace(), slots.Want{Batch: 1, Task: 2}), slots.Acquisition{Status: slots.StatusFull, Position: 1})
		s.release(t, pool, "3")
		s.due(t, pool, "d2", 0)
		diff(t, "before who is awake", s.ask(t, pool, sleepyPace(), slots.Want{Batch: 1, Task: 4}).Status, slots.StatusFull)
		diff(t, "awake", s.ask(t, pool, sleepyPace(), slots.Want{Batch: 1, Task: 2}).Status, slots.StatusAcquired)
	})
}

// A place is kept for one who does not come only for a moment, by real times.
func TestAPlaceIsNotKeptForLong(t *testing.T) {
	t.Parallel()
	s := onRedis(t)
	pool := s.poolOf(t, 1)
	pace := slots.Pace{Hold: 20 * time.Second, Soonest: time.Second, Longest: time.Hour}
	s.ask(t, pool, pace, slots.Want{Batch: 1, Task: 1})
	s.ask(t, pool, pace, slots.Want{Batch: 1, Task: 2}) // falls silent
	s.due(t, pool, "d2", 0)
	s.release(t, pool, "1")
	eventually(t, "the place to be given on", func() bool {
		return s.ask(t, pool, pace, slots.Want{Batch: 1, Task: 3}).Status == slots.StatusAcquired
	})
}

// One who does not come for a period leaves the line.
func TestOverdueLeaveTheLine(t *testing.T) {
	t.Parallel()
	onLines(t, func(t *testing.T, s *server) {
		t.Helper()
		pool := s.poolOf(t, 1)
		for task := range int64(5) {
			s.ask(t, pool, patientPace(), slots.Want{Batch: 1, Task: task})
		}
		s.due(t, pool, "d1", -2*time.Minute) // the longest time of the pace is a second, and a minute is grace here
		got := s.ask(t, pool, patientPace(), slots.Want{Batch: 1, Task: 4})
		standing, err := s.Standing(t.Context(), pool, []slots.Waiter{{Device: "d1", Batch: 1, Task: 1}, {Device: "d4", Batch: 1, Task: 4}})
		if err != nil {
			t.Fatal(err)
		}
		if got.Position != 3 || standing[0].InLine != 0 || standing[1].InLine != 4 || standing[1].Line != 3 || standing[1].Position != 3 {
			t.Errorf("at position %d; %+v", got.Position, standing)
		}
	})
}

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
