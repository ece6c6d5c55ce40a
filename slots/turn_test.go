package slots_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/slots"
)

// A refused device is told to come when its turn is likely, within the bounds; one
// that can be told of a place, only should nobody tell it.
func TestRefusedDeviceIsToldToComeForItsTurn(t *testing.T) {
	t.Parallel()
	s := onRedis(t)
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
	s := onRedis(t)
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
