package dispatcher_test

import (
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/slots"
)

// TestReconcileTakesBackWhatEndedMeanwhile: the grant was read, its device's
// result came and found nothing to release in Redis, and then the slot was
// added. Nobody would ever free it again.
func TestReconcileTakesBackWhatEndedMeanwhile(t *testing.T) {
	t.Parallel()
	b, spies := spied(t)
	b.pool("a", 2, minute)
	b.batch("a", nil, "d1")
	g := b.granted("d1")
	b.redis.FlushDB(b.ctx)
	if _, err := b.semaphore.Restore(b.ctx, "a", slots.Config{Capacity: 2, Version: 1}, nil); err != nil {
		t.Fatal(err)
	}
	ended := false
	spies.before("Adopt", func() {
		b.ended("d1", g, "succeeded", "", devices.OutcomeRecorded)
		ended = true
	})
	if r := b.reconcile(); r.Added != 1 || !ended {
		t.Errorf("reconciled %+v, ended %v: want the grant added", r, ended)
	}
	b.expectHeld(0)
}
