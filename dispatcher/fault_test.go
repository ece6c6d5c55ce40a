package dispatcher_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/store"
)

func TestWithoutTheSemaphoreNothingIsGranted(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t)
	b.createPool("a", 5, minute)
	b.createBatch("a", nil, "d1", "d2")
	g := b.expectGrant("d1")
	spies.failCalls("Acquire", "Release")
	// While Redis is down, results are recorded and acknowledged, but nothing is granted.
	reply := b.sendResult("d1", g, "succeeded", "", devices.OutcomeRecorded)
	if reply.Reason != devices.ReasonNone {
		t.Errorf("reason %s", reply.Reason)
	}
	b.expectReason("d2", `{}`, devices.ReasonUnavailable)
	b.expectState(g.ID, store.Succeeded)
	if inRedis, inLedger := b.heldSlots(); inRedis != 1 || inLedger != 0 {
		t.Errorf("held %d in Redis and %d in the ledger, want the slot still reserved", inRedis, inLedger)
	}
}

func TestWithoutTheLedgerNothingIsAcknowledged(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t)
	b.createPool("a", 5, minute)
	b.createBatch("a", nil, "d1")
	g := b.expectGrant("d1")
	spies.failCalls("RecordResults")
	if reply, err := b.tryReport("d1", resultReport(g, "succeeded", "")); !errors.Is(err, devices.ErrUnavailable) {
		t.Errorf("result not recorded, answered %+v, %v; want no acknowledgement", reply, err)
	}
	b.expectState(g.ID, store.Dispatched)
	spies.failCalls("Renew")
	if _, err := b.tryReport("d1", runningReport(g)); !errors.Is(err, devices.ErrUnavailable) {
		t.Errorf("not renewed: %v", err)
	}
	spies.failCalls("Views")
	if _, err := b.tryReport("d1", `{}`); !errors.Is(err, devices.ErrUnavailable) {
		t.Errorf("no view: %v", err)
	}
}

// TestAnUnknownCommitNeitherGrantsNorReleases checks a claim whose outcome is unknown. The device gets no reply
// with a task, and the slot is not released. The claim was committed, so the next report of the device gets its
// grant.
func TestAnUnknownCommitNeitherGrantsNorReleases(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t)
	b.createPool("a", 1, minute)
	b.createBatch("a", nil, "d1", "d2")
	spies.failAfter("Claim", store.ErrOutcomeUnknown)
	b.expectReason("d1", `{}`, devices.ReasonUnavailable)
	b.expectHeld(1) // the slot is not released, because the grant may be in force
	spies.removeHooks()
	b.expectReason("d2", `{}`, devices.ReasonFull)
	if g := b.expectGrant("d1"); g.Redelivered != 1 {
		t.Errorf("grant %+v, want the committed one again", g)
	}
}

func TestAcquireThatCameTooLateIsNotClaimed(t *testing.T) {
	t.Parallel()
	clock := &stoppedClock{}
	b, spies := newSpiedBench(t, func(c *dispatcher.Config) { c.Now = clock.now })
	b.createPool("a", 1, minute)
	b.createBatch("a", nil, "d1")
	b.reconcile()
	spies.runBefore("Acquire", func() { clock.advance(3*time.Second + 1) })
	b.expectReason("d1", `{}`, devices.ReasonUnavailable)
	b.expectHeld(0)
	spies.removeHooks()
	b.expectGrant("d1")
}

// TestTheCapHoldsWhileRedisIsWiped deletes all data of Redis again and again while devices report. The grants in
// the ledger must never exceed the capacity of the pool, and at the end all tasks are done.
func TestTheCapHoldsWhileRedisIsWiped(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		const capacity, fleet, rounds = 5, 20, 5
		b.createPool("a", capacity, minute)
		var names []string
		for i := range fleet {
			names = append(names, fmt.Sprintf("d%d", i))
		}
		for range rounds {
			b.createBatch("a", nil, names...)
		}
		var done atomic.Int64
		var wait sync.WaitGroup
		for _, name := range names {
			wait.Go(func() {
				completeTasks(b, name, rounds, func() {
					if done.Add(1)%10 == 0 { // wipe Redis while other devices report
						b.wipeRedis(capacity)
					}
				})
			})
		}
		wait.Wait()
		if done.Load() != fleet*rounds {
			b.t.Errorf("%d tasks done, want %d", done.Load(), fleet*rounds)
		}
		b.reconcile()
		if _, inLedger := b.heldSlots(); inLedger != 0 {
			b.t.Errorf("%d grants left", inLedger)
		}
	})
}

// wipeRedis deletes all data of Redis. Then it checks that the ledger has at most `capacity` grants.
func (b *testBench) wipeRedis(capacity int) {
	b.t.Helper()
	if err := b.redis.FlushDB(b.ctx).Err(); err != nil {
		b.t.Errorf("wiping: %v", err)
	}
	if _, inLedger := b.heldSlots(); inLedger > capacity {
		b.t.Errorf("%d grants in force, capacity %d", inLedger, capacity)
	}
}

// completeTasks sends reports of the device until it has done this number of tasks.
func completeTasks(b *testBench, device string, tasks int, onAck func()) {
	body := `{"id":"next"}`
	deadline := time.Now().Add(2 * time.Minute)
	for n := 0; n < tasks; {
		reply, err := b.tryReport(device, body)
		if errors.Is(err, devices.ErrUnavailable) && time.Now().Before(deadline) {
			continue // the machine is under load: send the report again
		}
		if err != nil || time.Now().After(deadline) {
			b.t.Errorf("%s after %d tasks: %v", device, n, err)
			return
		}
		for range reply.Acks {
			n++
			onAck()
		}
		body = `{"id":"next"}`
		if reply.Task != nil {
			body = resultReport(*reply.Task, "succeeded", "")
		}
	}
}

func TestAResizeHoldsThroughAWipe(t *testing.T) {
	t.Parallel()
	runOnBackends(t, func(b *testBench) {
		b.createPool("a", 6, minute)
		b.createBatch("a", nil, "d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7")
		var grants []devices.Task
		for i := range 6 {
			grants = append(grants, b.expectGrant(fmt.Sprintf("d%d", i)))
		}
		b.createPool("a", 4, minute)
		if r := b.reconcile(); r.Resized != 1 {
			b.t.Errorf("reconciled %+v, want one resize", r)
		}
		b.sendResult("d0", grants[0], "succeeded", "", devices.OutcomeRecorded)
		b.sendResult("d1", grants[1], "succeeded", "", devices.OutcomeRecorded)
		b.expectReason("d6", `{}`, devices.ReasonFull) // 4 of 4 slots are held: slots 2 to 5
		b.redis.FlushDB(b.ctx)
		b.expectReason("d6", `{}`, devices.ReasonFull)
		b.expectHeld(4)
		b.sendResult("d2", grants[2], "succeeded", "", devices.OutcomeRecorded)
		if g := b.expectGrant("d6"); g.Slot != 0 {
			b.t.Errorf("slot %d, want the lowest free one", g.Slot)
		}
		b.expectReason("d7", `{}`, devices.ReasonFull)
	})
}
