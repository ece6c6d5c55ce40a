package dispatcher_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// watchedSemaphore lets something happen just before a restore.
type watchedSemaphore struct {
	dispatcher.Semaphore
	beforeRestore func()
}

func (s *watchedSemaphore) Restore(ctx context.Context, pool string, c slots.Config, held []slots.Holding) (bool, error) {
	s.beforeRestore()
	return s.Semaphore.Restore(ctx, pool, c, held)
}

func watched(t *testing.T) (*bench, *watchedSemaphore) {
	t.Helper()
	semaphore := &watchedSemaphore{beforeRestore: func() {}}
	return embedded(t, func(c *dispatcher.Config) { semaphore.Semaphore, c.Semaphore = c.Semaphore, semaphore }), semaphore
}

// TestRestoreTakesBackWhatEndedMeanwhile: the grants were read, a result came
// and found no pool to release its slot in, and then the pool was restored with
// it. It is free at once, and not when it has become an old orphan.
func TestRestoreTakesBackWhatEndedMeanwhile(t *testing.T) {
	t.Parallel()
	b, semaphore := watched(t)
	b.pool("a", 2, minute)
	b.batch("a", nil, "d1", "d2")
	g := b.granted("d1")
	b.granted("d2")
	b.redis.FlushDB(b.ctx)
	semaphore.beforeRestore = func() {
		semaphore.beforeRestore = func() {}
		b.ended("d1", g, "succeeded", "", devices.OutcomeRecorded)
	}
	if r := b.reconcile(); r.Restored != 1 {
		t.Errorf("reconciled %+v, want one restored", r)
	}
	b.expectHeld(1)
}

// countingStore counts the readings of a pool, and lets the first wait until the
// others had time to come.
type countingStore struct {
	dispatcher.Store
	pools atomic.Int64
	hold  chan struct{}
}

func (s *countingStore) Pool(ctx context.Context, name string) (store.Pool, error) {
	s.pools.Add(1)
	<-s.hold
	return s.Store.Pool(ctx, name)
}

// TestAnUnknownPoolIsRestoredOnceForAllReports: not by each of the thousands
// that find it unknown at the same time.
func TestAnUnknownPoolIsRestoredOnceForAllReports(t *testing.T) {
	t.Parallel()
	const fleet = 20
	var reads int64
	for range 5 { // reports that a busy machine keeps from joining the others read again
		if reads = readsOfALostPool(t, fleet); reads <= fleet/2 {
			return
		}
	}
	t.Errorf("the pool was read %d times for %d reports", reads, fleet)
}

// readsOfALostPool is how often it is read when so many report at once.
func readsOfALostPool(t *testing.T, fleet int) int64 {
	t.Helper()
	ledger := &countingStore{hold: make(chan struct{})}
	var asked sync.WaitGroup
	asked.Add(fleet)
	b := embedded(t, func(c *dispatcher.Config) {
		ledger.Store, c.Store = c.Store, ledger
		c.Semaphore = &announcingSemaphore{Semaphore: c.Semaphore, asked: &asked, left: fleet}
	})
	b.pool("a", fleet, minute)
	names := make([]string, fleet)
	for i := range names {
		names[i] = fmt.Sprintf("d%d", i)
	}
	b.batch("a", nil, names...)
	var reports sync.WaitGroup
	for _, name := range names {
		reports.Go(func() { b.granted(name) })
	}
	asked.Wait() // all were told that the pool is unknown, but for the answer's way
	b.eventually("a reading of the pool", func() bool { return ledger.pools.Load() > 0 })
	close(ledger.hold)
	reports.Wait()
	b.expectHeld(fleet)
	return ledger.pools.Load()
}

// announcingSemaphore tells when so many have asked it for a slot.
type announcingSemaphore struct {
	dispatcher.Semaphore
	asked *sync.WaitGroup
	mu    sync.Mutex
	left  int
}

func (s *announcingSemaphore) Acquire(ctx context.Context, pool string, pace slots.Pace, r []slots.Request) ([]slots.Acquisition, []slots.Offer, error) {
	got, offers, err := s.Semaphore.Acquire(ctx, pool, pace, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left > 0 {
		s.left--
		s.asked.Done()
	}
	return got, offers, err
}

// eventually polls until the condition holds.
func (b *bench) eventually(what string, holds func() bool) {
	b.t.Helper()
	deadline := time.After(2 * time.Minute)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			b.t.Fatalf("no %s", what)
		}
	}
}
