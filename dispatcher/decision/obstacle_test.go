package decision

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// testMoment returns the time that is the present in the generated situations.
func testMoment() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

// drawTime returns at random the zero time or a time near testMoment.
func drawTime(t *rapid.T, name string) time.Time {
	offset := rapid.SampledFrom([]time.Duration{0, -time.Hour, -1, 1, time.Minute, time.Hour}).Draw(t, name)
	if offset == 0 {
		return time.Time{}
	}
	return testMoment().Add(offset)
}

func drawOpening(t *rapid.T, name string) store.Opening {
	until := drawTime(t, name+" until")
	if until.IsZero() {
		return store.Opening{}
	}
	return store.Opening{From: until.Add(-rapid.SampledFrom([]time.Duration{time.Second, time.Minute, 2 * time.Hour}).Draw(t, name+" length")), Until: until}
}

func drawCandidate(t *rapid.T, task int64) store.Candidate {
	rare := func(name string) bool { return rapid.IntRange(0, 3).Draw(t, name) == 0 }
	return store.Candidate{
		Task: task, Batch: task, Pool: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "pool"), Priority: rapid.IntRange(0, 2).Draw(t, "priority"),
		CreatedAt: testMoment().Add(-time.Duration(rapid.IntRange(0, 2).Draw(t, "age")) * time.Hour),
		NotBefore: drawTime(t, "not before"), RetryAt: drawTime(t, "retry at"), RetryAtIsNotBefore: rare("not begun"),
		Lease: time.Minute, FinishInside: rare("finish inside"),
		PoolPaused: rare("pool paused"), BatchPaused: rare("batch paused"),
		Window: drawOpening(t, "window"), PoolWindow: drawOpening(t, "pool's window"), Standstill: drawTime(t, "standstill"),
	}
}

// drawSituation returns a random situation of an idle or busy device with this number of open tasks.
func drawSituation(t *rapid.T, tasks int) Situation {
	rare := func(name string) bool { return rapid.IntRange(0, 5).Draw(t, name) == 0 }
	s := Situation{
		Now: testMoment(), Standstill: drawTime(t, "standstill"),
		Blocked: rare("blocked"), Accept: !rare("declines"), MustStop: rare("stopping"),
		FullPools:        map[string]bool{"a": rare("a full"), "b": rare("b full")},
		UnreachablePools: map[string]bool{"b": rare("b unsure")},
	}
	if rare("holds") {
		s.HeldGrant, s.Mentioned = &store.Grant{Task: 99, LeaseUntil: testMoment().Add(time.Minute)}, true
	}
	for i := range tasks {
		s.Candidates = append(s.Candidates, drawCandidate(t, int64(i+1)))
	}
	return s
}

// A device has one task. Decide must return the reason of the task's first obstacle. If the task has no obstacle, Decide must grant it.
func TestDecisionIsTheFirstObstacle(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawSituation(t, 1)
		found, choice := s.obstacles(s.Candidates[0]), Decide(s)
		want := devices.ReasonGranted
		if len(found) > 0 {
			want = found[0].Reason
		}
		if choice.Reason != want || (len(choice.Tasks) == 1) != (len(found) == 0) {
			t.Fatalf("decided %+v, obstacles %+v", choice, found)
		}
		for _, o := range found {
			if o.Reason == choice.Reason && choice.Until.Before(o.Until) && !choice.Until.IsZero() {
				t.Fatalf("asked back at %s, before %+v is over", choice.Until, o)
			}
		}
	})
}

// A window keeps a task from its start. BlocksOneTask of the obstacle must be true exactly if a task with a shorter lease could start.
// BlocksOneTask of the decision must be true exactly if it is true for at least one of the obstacles.
func TestAnObstacleOfTheLeaseIsTheTasksOwn(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawSituation(t, 1)
		c := s.Candidates[0]
		c.FinishInside = false
		shut := s.taskObstacles(c)
		all := s.obstacles(s.Candidates[0])
		for _, o := range all {
			if o.Code != CodeBatchWindow && o.Code != CodePoolWindow {
				continue
			}
			if forAll := slices.ContainsFunc(shut, func(other Obstacle) bool { return other.Code == o.Code }); o.BlocksOneTask == forAll {
				t.Fatalf("%s: own %t, and shut for every lease %t", o.Code, o.BlocksOneTask, forAll)
			}
		}
		own := slices.ContainsFunc(all, func(o Obstacle) bool { return o.BlocksOneTask })
		if choice := Decide(s); len(all) > 0 && len(s.deviceObstacles()) == 0 && s.HeldGrant == nil && choice.BlocksOneTask != own {
			t.Fatalf("decided %+v, obstacles %+v", choice, all)
		}
	})
}

// A device has several tasks. Decide must grant exactly if at least one of them has no obstacle. Otherwise it must return the reason of one
// of them.
func TestDecisionAmongSeveral(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawSituation(t, rapid.IntRange(2, 4).Draw(t, "tasks"))
		choice := Decide(s)
		var free []int64
		var reasons []devices.Reason
		for _, c := range s.Candidates {
			if found := s.obstacles(c); len(found) == 0 {
				free = append(free, c.Task)
			} else {
				reasons = append(reasons, found[0].Reason)
			}
		}
		switch {
		case slices.ContainsFunc(choice.Tasks, func(c store.Candidate) bool { return c.Pool != choice.Tasks[0].Pool || !slices.Contains(free, c.Task) }):
			t.Fatalf("to be tried: %+v, and only %v have no obstacle", choice.Tasks, free)
		case len(choice.Tasks) == 0 && (len(free) > 0 || !slices.Contains(reasons, choice.Reason)):
			t.Fatalf("decided %+v: %v have no obstacle, the others %v", choice, free, reasons)
		}
	})
}

// Decide must try a task exactly if the task has no obstacle and findEarlierTask finds no other task of its device that goes first.
func TestNothingIsFoundWhenItsTurnHasCome(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawSituation(t, rapid.IntRange(1, 4).Draw(t, "tasks"))
		choice := Decide(s)
		for _, c := range s.Candidates {
			other := findEarlierTask(s, c, 0)
			kept := len(s.obstacles(c)) > 0 || other != nil
			if tried := slices.ContainsFunc(choice.Tasks, func(o store.Candidate) bool { return o.Task == c.Task }); tried == kept {
				t.Fatalf("decided %+v; of task %d %+v, and %+v goes first", choice, c.Task, s.obstacles(c), other)
			}
			if other != nil && (other.Task == c.Task || len(s.taskObstacles(*other)) > 0 && other.Pool != c.Pool) {
				t.Fatalf("%+v goes first, and cannot start", other)
			}
		}
		if len(choice.Tasks) == 0 {
			return
		}
		// If the semaphore says that the first task goes first, findEarlierTask returns this task for every other
		// task that would be tried.
		first := rapid.SampledFrom(choice.Tasks).Draw(t, "first").Task
		for _, c := range choice.Tasks {
			if other := findEarlierTask(s, c, first); (other == nil) != (c.Task == first) || other != nil && other.Task != first {
				t.Fatalf("%d is first, and before %d goes %+v", first, c.Task, other)
			}
		}
	})
}
