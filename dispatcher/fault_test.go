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
	b, spies := spied(t)
	b.pool("a", 5, minute)
	b.batch("a", nil, "d1", "d2")
	g := b.granted("d1")
	spies.down("Acquire", "Release")
	// Results are recorded and acknowledged, but nothing is granted.
	reply := b.ended("d1", g, "succeeded", "", devices.OutcomeRecorded)
	if reply.Reason != devices.ReasonNone {
		t.Errorf("reason %s", reply.Reason)
	}
	b.expectReason("d2", `{}`, devices.ReasonUnavailable)
	b.expectState(g.ID, store.Succeeded)
	if inRedis, inLedger := b.held(); inRedis != 1 || inLedger != 0 {
		t.Errorf("held %d in Redis and %d in the ledger, want the slot still reserved", inRedis, inLedger)
	}
}

func TestWithoutTheLedgerNothingIsAcknowledged(t *testing.T) {
	t.Parallel()
	b, spies := spied(t)
	b.pool("a", 5, minute)
	b.batch("a", nil, "d1")
	g := b.granted("d1")
	spies.down("RecordResults")
	if reply, err := b.tryReport("d1", result(g, "succeeded", "")); !errors.Is(err, devices.ErrUnavailable) {
		t.Errorf("result not recorded, answered %+v, %v; want no acknowledgement", reply, err)
	}
	b.expectState(g.ID, store.Dispatched)
	spies.down("Renew")
	if _, err := b.tryReport("d1", running(g)); !errors.Is(err, devices.ErrUnavailable) {
		t.Errorf("not renewed: %v", err)
	}
	spies.down("Views")
	if _, err := b.tryReport("d1", `{}`); !errors.Is(err, devices.ErrUnavailable) {
		t.Errorf("no view: %v", err)
	}
}

// TestAnUnknownCommitNeitherGrantsNorReleases checks that a claim with an unknown outcome leads to no reply
// with a task and to no release of the slot. The next report finds the grant, which was committed.
func TestAnUnknownCommitNeitherGrantsNorReleases(t *testing.T) {
	t.Parallel()
	b, spies := spied(t)
	b.pool("a", 1, minute)
	b.batch("a", nil, "d1", "d2")
	spies.fails("Claim", store.ErrOutcomeUnknown)
	b.expectReason("d1", `{}`, devices.ReasonUnavailable)
	b.expectHeld(1) // the slot is not released, because the grant may be in force
	spies.ease()
	b.expectReason("d2", `{}`, devices.ReasonFull)
	if g := b.granted("d1"); g.Redelivered != 1 {
		t.Errorf("grant %+v, want the committed one again", g)
	}
}

func TestAcquireThatCameTooLateIsNotClaimed(t *testing.T) {
	t.Parallel()
	clock := &stoppedClock{}
	b, spies := spied(t, func(c *dispatcher.Config) { c.Now = clock.now })
	b.pool("a", 1, minute)
	b.batch("a", nil, "d1")
	b.reconcile()
	spies.before("Acquire", func() { clock.pass(3*time.Second + 1) })
	b.expectReason("d1", `{}`, devices.ReasonUnavailable)
	b.expectHeld(0)
	spies.ease()
	b.granted("d1")
}

// TestTheCapHoldsWhileRedisIsWiped wipes Redis repeatedly while devices report. It checks that the grants in
// the ledger never exceed the capacity, and that all tasks are done.
func TestTheCapHoldsWhileRedisIsWiped(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		const capacity, fleet, rounds = 5, 20, 5
		b.pool("a", capacity, minute)
		var names []string
		for i := range fleet {
			names = append(names, fmt.Sprintf("d%d", i))
		}
		for range rounds {
			b.batch("a", nil, names...)
		}
		var done atomic.Int64
		var wait sync.WaitGroup
		for _, name := range names {
			wait.Go(func() {
				workAll(b, name, rounds, func() {
					if done.Add(1)%10 == 0 { // wipe Redis while other devices report
						b.wipe(capacity)
					}
				})
			})
		}
		wait.Wait()
		if done.Load() != fleet*rounds {
			b.t.Errorf("%d tasks done, want %d", done.Load(), fleet*rounds)
		}
		b.reconcile()
		if _, inLedger := b.held(); inLedger != 0 {
			b.t.Errorf("%d grants left", inLedger)
		}
	})
}

// wipe empties Redis and checks that the grants in the ledger do not exceed the capacity.
func (b *bench) wipe(capacity int) {
	b.t.Helper()
	if err := b.redis.FlushDB(b.ctx).Err(); err != nil {
		b.t.Errorf("wiping: %v", err)
	}
	if _, inLedger := b.held(); inLedger > capacity {
		b.t.Errorf("%d grants in force, capacity %d", inLedger, capacity)
	}
}

// workAll sends reports until the device has done the given number of tasks.
func workAll(b *bench, device string, tasks int, done func()) {
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
			done()
		}
		body = `{"id":"next"}`
		if reply.Task != nil {
			body = result(*reply.Task, "succeeded", "")
		}
	}
}

func TestAResizeHoldsThroughAWipe(t *testing.T) {
	t.Parallel()
	forBackends(t, func(b *bench) {
		b.pool("a", 6, minute)
		b.batch("a", nil, "d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7")
		var grants []devices.Task
		for i := range 6 {
			grants = append(grants, b.granted(fmt.Sprintf("d%d", i)))
		}
		b.pool("a", 4, minute)
		if r := b.reconcile(); r.Resized != 1 {
			b.t.Errorf("reconciled %+v, want one resize", r)
		}
		b.ended("d0", grants[0], "succeeded", "", devices.OutcomeRecorded)
		b.ended("d1", grants[1], "succeeded", "", devices.OutcomeRecorded)
		b.expectReason("d6", `{}`, devices.ReasonFull) // 4 of 4 slots are held: slots 2 to 5
		b.redis.FlushDB(b.ctx)
		b.expectReason("d6", `{}`, devices.ReasonFull)
		b.expectHeld(4)
		b.ended("d2", grants[2], "succeeded", "", devices.OutcomeRecorded)
		if g := b.granted("d6"); g.Slot != 0 {
			b.t.Errorf("slot %d, want the lowest free one", g.Slot)
		}
		b.expectReason("d7", `{}`, devices.ReasonFull)
	})
}
