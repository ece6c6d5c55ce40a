package slots_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/slots"
)

// TestCallSentAgainHasOneEffect checks calls of the semaphore whose script runs but whose reply is lost. The client
// sends the call again, and the second reply is lost, too. The answer to the third sending and the state of Redis
// must be as after a single call.
func TestCallSentAgainHasOneEffect(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		loadScripts(t, s)
		for name, call := range replayCalls() {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				if name == chunkedRestore {
					s.skipIfSlowInLua(t)
				}
				s.checkReplay(t, call)
			})
		}
	})
}

func (s *redisSemaphore) checkReplay(t *testing.T, call replayCall) {
	t.Helper()
	lossy, lost := s.newLossySemaphore(t, 2)
	once, again := t.Name()+".once", t.Name()+".again"
	var answers [2]any
	for i, pool := range []string{once, again} {
		if call.isKnown {
			s.restore(t, pool, slots.Config{Capacity: 3, Version: 1}, newHoldings("old", 2)...)
		}
		var err error
		if answers[i], err = call.run(t.Context(), []*slots.Semaphore{s.Semaphore, lossy}[i], pool); err != nil {
			t.Fatal(err)
		}
	}
	if got := lost(); got != 2 {
		t.Fatalf("%d replies were lost, want 2", got)
	}
	expectEqual(t, "answer", answers[1], answers[0])
	expectEqual(t, "effect", s.readSnapshot(t, again), s.readSnapshot(t, once))
	expectEqual(t, "free slots", s.freeSlots(t, again), s.freeSlots(t, once))
}

// chunkedRestore is the name of the test's call that restores a pool in several chunks.
const chunkedRestore = "restore in chunks"

type replayCall struct {
	isKnown bool // whether the pool is known before the call, with 2 of 3 slots held
	run     semaphoreCall
}

type semaphoreCall func(context.Context, *slots.Semaphore, string) (any, error)

func replayCalls() map[string]replayCall {
	return map[string]replayCall{
		"acquire":              {true, acquireCall("a", "old.1", "a", "b")},
		"acquire from unknown": {false, acquireCall("a")},
		"stand in line":        {true, enterQueue},
		"queue places": {true, func(ctx context.Context, s *slots.Semaphore, pool string) (any, error) {
			return s.ReadQueuePlaces(ctx, pool, "a", []slots.Want{{Batch: 1, Task: 1}})
		}},
		"release": {true, func(ctx context.Context, s *slots.Semaphore, pool string) (any, error) {
			_, _, err := s.Release(ctx, pool, slots.Pace{}, []string{"nobody", "old.1", "old.1", "old.0"})
			return nil, err // freed is left out: if the call is repeated, an earlier sending has freed the slots
		}},
		"raise":              {true, configureCall(9, 2)},
		"lower":              {true, configureCall(1, 2)},
		"stale configure":    {true, configureCall(9, 1)},
		"restore":            {false, restoreCall(5, 3)},
		chunkedRestore:       {false, restoreCall(2000, 1200)},
		"restore of nobody":  {false, restoreCall(5, 0)},
		"restore into known": {true, restoreCall(5, 3)},
		"adopt": {true, func(ctx context.Context, s *slots.Semaphore, pool string) (any, error) {
			return s.Adopt(ctx, pool, []slots.LedgerGrant{
				{Lease: "n", Device: "d", Slot: 2}, {Lease: "x", Device: "d", Slot: 0}, {Lease: "old.1", Device: "d", Slot: 4},
			})
		}},
		"snapshot": {true, func(ctx context.Context, s *slots.Semaphore, pool string) (any, error) {
			return s.Snapshot(ctx, pool)
		}},
		"forget": {true, func(ctx context.Context, s *slots.Semaphore, pool string) (any, error) {
			return nil, s.Forget(ctx, pool)
		}},
	}
}

func acquireCall(leases ...string) semaphoreCall {
	return func(ctx context.Context, s *slots.Semaphore, pool string) (any, error) {
		got, _, err := s.Acquire(ctx, pool, slots.Pace{}, newRequests(1e9, leases...))
		return got, err
	}
}

func enterQueue(ctx context.Context, s *slots.Semaphore, pool string) (any, error) {
	reqs := newRequests(1e9, "a", "b", "c", "old.0")
	for i := range reqs {
		reqs[i].Wants[0].Batch, reqs[i].Wants[0].Task = int64(i%2+1), int64(i+1)
	}
	pace := slots.Pace{MeanHold: time.Minute, MinWait: time.Second, ReportPeriod: time.Hour}
	got, _, err := s.Acquire(ctx, pool, pace, reqs)
	return got, err // expectEqual does not compare times
}

func configureCall(capacity int, version int64) semaphoreCall {
	return func(ctx context.Context, s *slots.Semaphore, pool string) (any, error) {
		return s.Configure(ctx, pool, slots.Config{Capacity: capacity, Version: version})
	}
}

func restoreCall(capacity, holders int) semaphoreCall {
	return func(ctx context.Context, s *slots.Semaphore, pool string) (any, error) {
		return s.Restore(ctx, pool, slots.Config{Capacity: capacity, Version: 4}, newHoldings("r", holders))
	}
}

// TestReplayAnswersOnlyItsOwnCall checks a new call that has the same arguments as an earlier call. It must not be treated as a repetition
// of the earlier call.
func TestReplayAnswersOnlyItsOwnCall(t *testing.T) {
	t.Parallel()
	runOnEachRedis(t, func(t *testing.T, s *redisSemaphore) {
		t.Helper()
		loadScripts(t, s)
		pool := s.restorePool(t, 3)
		lossy, lost := s.newLossySemaphore(t, 1)
		out, _, err := lossy.Acquire(t.Context(), pool, slots.Pace{}, newRequests(1e9, "a"))
		if err != nil || lost() != 1 {
			t.Fatal(err, lost())
		}
		expectEqual(t, "sent twice", out, []slots.Acquisition{acquiredSlot(0)})
		expectEqual(t, "a second call", s.acquire(t, pool, "a"), acquiredSlot(0))
		s.release(t, pool, "a")
		expectEqual(t, "a second release", s.release(t, pool, "a"), []bool{false})
	})
}

// TestNextCallFindsWhatAllLostRepliesDid checks a call that returned ErrUnavailable because all its replies were lost. The next call must
// find the effect of this call.
func TestNextCallFindsWhatAllLostRepliesDid(t *testing.T) {
	t.Parallel()
	s := newRedisSemaphore(t)
	loadScripts(t, s)
	pool := s.restorePool(t, 3)
	lossy, lost := s.newLossySemaphore(t, 3)
	if _, _, err := lossy.Acquire(t.Context(), pool, slots.Pace{}, newRequests(1e9, "a")); !errors.Is(err, slots.ErrUnavailable) {
		t.Fatalf("all replies lost: %v, want ErrUnavailable", err)
	}
	if got := lost(); got != 3 {
		t.Fatalf("sent %d times, want 3", got)
	}
	expectEqual(t, "next call", s.acquire(t, pool, "a"), acquiredSlot(0))
	expectEqual(t, "one effect", s.slotHolders(t, pool), map[int]string{0: "a"})
}

// loadScripts loads every script into Redis, so that Redis can run it by its hash (EVALSHA).
func loadScripts(t *testing.T, s *redisSemaphore) {
	t.Helper()
	calls := replayCalls()
	delete(calls, chunkedRestore) // this call uses the script of another call
	for _, c := range calls {
		if _, err := c.run(t.Context(), s.Semaphore, t.Name()+".warm"); err != nil && !errors.Is(err, slots.ErrUnknownPool) {
			t.Fatal(err)
		}
	}
}

// newLossySemaphore returns a semaphore that loses the replies to its next n calls after the calls were executed. The returned function
// returns how many replies were lost so far.
func (s *redisSemaphore) newLossySemaphore(t *testing.T, n int32) (*slots.Semaphore, func() int) {
	t.Helper()
	var left atomic.Int32
	left.Store(n)
	proxy := servers.NewProxy(t, s.Addr)
	proxy.OnRequest(func(b []byte) {
		b = bytes.ToLower(b)
		if (bytes.Contains(b, []byte("evalsha")) || bytes.Contains(b, []byte("\r\ndel\r\n"))) && left.Add(-1) >= 0 {
			proxy.DropReplies(1)
		}
	})
	return slots.New(s.dial(t, proxy.Addr)), proxy.Dropped
}
