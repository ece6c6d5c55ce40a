package slots_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

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
	for _, b := range backends() {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, b)
			s.Semaphore = slots.NewPatient(s.client)
			test(t, s)
		})
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
func TestOrder(t *testing.T) {
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

// Batches that are more than the places, or than the one place, take turns.
func TestTurns(t *testing.T) {
	t.Parallel()
	for _, capacity := range []int{1, 3} {
		t.Run(strconv.Itoa(capacity), func(t *testing.T) {
			t.Parallel()
			onLines(t, func(t *testing.T, s *server) {
				t.Helper()
				const batches, rounds = 6, 4
				pool, all, grants := s.poolOf(t, capacity), map[int64]slots.Want{}, map[int64]int{}
				next := int64(batches * 1000)
				add := func(batch int64) {
					next++
					all[next] = slots.Want{Batch: batch, Weight: 1, Task: next}
				}
				var holds []int64
				for batch := range int64(batches) {
					add(batch + 1)
					add(batch + 1)
				}
				for _, w := range all {
					if s.ask(t, pool, patientPace(), w).Status == slots.StatusAcquired {
						holds = append(holds, w.Task)
					}
				}
				batchOf := map[int64]int64{}
				for task, w := range all {
					batchOf[task] = w.Batch
				}
				for range batches * rounds {
					add(batchOf[holds[0]])
					batchOf[next] = all[next].Batch
					granted := s.passOn(t, pool, all, holds[0])
					if len(granted) != 1 {
						t.Fatalf("nobody got the place that %d left", holds[0])
					}
					holds = append(holds[1:], granted...)
					grants[batchOf[granted[0]]]++
				}
				for batch := range int64(batches) {
					if n := grants[batch+1]; n < rounds-1 || n > rounds+1 {
						t.Errorf("grants by batch: %v, want %d each", grants, rounds)
						break
					}
				}
			})
		})
	}
}

// Weights hold in a pool of one place as well: there they are shares of the turns.
func TestWeightsOfOnePlace(t *testing.T) {
	t.Parallel()
	onLines(t, func(t *testing.T, s *server) {
		t.Helper()
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
func TestSmallBatchBehindALargeOne(t *testing.T) {
	t.Parallel()
	s := newServer(t, backends()[0])
	s.Semaphore = slots.NewPatient(s.client)
	const capacity, large = 60, 50_000
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
		for _, task := range []int64{60, 45_000, 90_002, 90_001, 90_000, 61} {
			batch := int64(1)
			if task >= large {
				batch = 2
			}
			w := slots.Want{Batch: batch, Task: task, Priority: int(18 - 9*batch)}
			if batch == 1 {
				w.Priority = 9
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
	for _, capacity := range []int{1, 5} {
		onLines(t, func(t *testing.T, s *server) {
			t.Helper()
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
		})
	}
}

// In a large pool a place is kept longer for a batch that has none.
func TestBatchWithNothingIsWaitedFor(t *testing.T) {
	t.Parallel()
	for capacity, want := range map[int]slots.Status{19: slots.StatusAcquired, 20: slots.StatusFull} {
		onLines(t, func(t *testing.T, s *server) {
			t.Helper()
			pool := t.Name() + strconv.Itoa(capacity)
			s.restore(t, pool, slots.Config{Capacity: capacity, Version: 1})
			for i := range int64(capacity) {
				s.ask(t, pool, sleepyPace(), slots.Want{Batch: 1, Task: 10 + i})
			}
			s.ask(t, pool, sleepyPace(), slots.Want{Batch: 2, Task: 1})
			s.due(t, pool, "d1", 40*time.Second) // beyond the usual time, within the longest
			s.release(t, pool, "10")
			diff(t, fmt.Sprintf("one more of the others, of %d places", capacity), s.ask(t, pool, sleepyPace(), slots.Want{Batch: 1, Task: 90}).Status, want)
		})
	}
}

// due changes when a waiter was told to come.
func (s *server) due(t *testing.T, pool, device string, in time.Duration) {
	t.Helper()
	now, err := s.client.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	key := "slots:{" + pool + "}:due"
	if err := s.client.Do(t.Context(), "ZADD", key, "XX", now.Add(in).UnixMilli(), device).Err(); err != nil {
		t.Fatal(err)
	}
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
	s := newServer(t, backends()[0])
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

// A refused device is told to come when its turn is likely, within the bounds; one
// that can be told of a place, only should nobody tell it.
func TestWhenToComeAgain(t *testing.T) {
	t.Parallel()
	s := newServer(t, backends()[0])
	pool := s.poolOf(t, 2)
	pace := slots.Pace{Hold: 10 * time.Second, Soonest: time.Second, Longest: 10 * time.Second}
	early := func(d time.Duration) time.Duration { return d * 9 / 10 } // chance 0: a tenth
	for task := int64(1); task <= 10; task++ {
		got := s.ask(t, pool, pace, slots.Want{Batch: 1, Task: task})
		want := early(min(time.Duration(task-2)*5*time.Second, 3*pace.Longest))
		if task > 2 && (got.Position != int(task-2) || got.After != want) {
			t.Errorf("task %d: %+v, want position %d after %s", task, got, task-2, want)
		}
	}
	for _, pace.Longest = range []time.Duration{10 * time.Second, 6 * time.Second} {
		told := asking("told", slots.Want{Lease: "told", TTL: time.Hour, Batch: 1, Task: 11})
		told.Reach = slots.ReachPush
		got, _, err := s.Acquire(t.Context(), pool, pace, []slots.Request{told})
		if want := early(min(45*time.Second+pace.Longest, 8*pace.Longest)); err != nil || got[0].Position != 9 || got[0].After != want {
			t.Errorf("who can be told: %+v, %v, want position 9 after %s", got, err, want)
		}
	}
	late := asking("late", slots.Want{Lease: "late", TTL: time.Hour, Batch: 1, Task: 10})
	late.Chance = 1
	if got, _, err := s.Acquire(t.Context(), pool, pace, []slots.Request{late}); err != nil || got[0].After != 3*pace.Longest {
		t.Errorf("the other end of the spread: %+v, %v, want its turn at the latest, after %s", got, err, 3*pace.Longest)
	}
	pace.Hold = time.Millisecond
	if got := s.ask(t, pool, pace, slots.Want{Batch: 1, Task: 3}); got.After != pace.Soonest {
		t.Errorf("%+v, want %s at least", got, pace.Soonest)
	}
}

// Of those who have not asked yet as many come before a device as stand in line
// before it, in proportion. What is known may be older than the line.
func TestWhoHasNotAskedYetIsCounted(t *testing.T) {
	t.Parallel()
	onLines(t, func(t *testing.T, s *server) {
		t.Helper()
		pool := s.poolOf(t, 2)
		pace := slots.Pace{Hold: 10 * time.Second, Soonest: time.Second, Longest: time.Hour}
		for task := range int64(2) {
			s.ask(t, pool, pace, slots.Want{Batch: 1, Task: task + 1})
		}
		for _, test := range []struct {
			task    int64
			waiting int
			turn    time.Duration // 5 s each
		}{
			{10, 11, 30 * time.Second}, // half of the 10 others come before it
			{10, 11, 30 * time.Second}, // and again: it stands in line itself now
			{20, 11, 40 * time.Second}, // two thirds of the 9 others
			{10, 11, 20 * time.Second}, // a third
			{10, 1, 5 * time.Second},
			{10, 0, 5 * time.Second},
		} {
			pace.Waiting = test.waiting
			got := s.ask(t, pool, pace, slots.Want{Batch: 1, Task: test.task})
			if want := test.turn * 9 / 10; got.Position != int(test.task/10) || got.After != want {
				t.Errorf("task %d, and %d wait: %+v, want position %d after %s", test.task, test.waiting, got, test.task/10, want)
			}
		}
	})
}

// Where many wait, who polls comes somewhat late rather than early, unless too few
// stand behind it to come meanwhile.
func TestLateWhileEnoughStandBehind(t *testing.T) {
	t.Parallel()
	s := newServer(t, backends()[0])
	pool := s.poolOf(t, 40)
	pace := slots.Pace{Hold: 40 * time.Second, Soonest: time.Second, Longest: 100 * time.Second}
	at := func(device string, task int64, chance float64) time.Duration {
		r := asking(device, slots.Want{Lease: device, TTL: time.Hour, Batch: 1, Task: task})
		r.Chance = chance
		got, _, err := s.Acquire(t.Context(), pool, pace, []slots.Request{r})
		if err != nil {
			t.Fatal(err)
		}
		return got[0].After
	}
	for task := range int64(120) { // 80 stand in line, one a second
		at(strconv.FormatInt(task, 10), task, 0)
	}
	for task, most := range map[int64]time.Duration{
		40:  3 * time.Second,          // 3 times its turn
		59:  15 * time.Second,         // a quarter of what is behind its 20 s
		79:  10 * time.Second,         // likewise
		117: -7800 * time.Millisecond, // next to nobody: up to a tenth early, of 78 s
	} {
		turn := time.Duration(task-39) * time.Second
		low, high := at(strconv.FormatInt(task, 10), task, 0), at(strconv.FormatInt(task, 10), task, 1)
		want := []time.Duration{turn, turn + most}
		if most < 0 {
			want = []time.Duration{turn + most, turn}
		}
		if low != want[0] || high != want[1] {
			t.Errorf("task %d: told %s to %s, want %s", task, low, high, want)
		}
	}
	pace.Longest = 2 * time.Second
	if got := at("79", 79, 1); got != 3*pace.Longest {
		t.Errorf("told %s, want %s at most", got, 3*pace.Longest)
	}
}
