package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/operators"
)

// A renewal that arrives after the guard has begun to end the command has no effect. The command is
// reported as ended because of its lease, not because of the signal.
func TestARenewalThatComesTooLateIsALostLease(t *testing.T) {
	t.Parallel()
	k := &leaseKeeper{runner: &runner{grace: time.Minute}, held: operators.Lease{UsableUntil: time.Now().Add(30 * time.Second)}}
	renewed := operators.Lease{UsableUntil: time.Now().Add(time.Hour), LeaseMS: time.Hour.Milliseconds()}
	if pause := k.applyRenewal(renewalResult{lease: renewed}, nil); pause >= 0 || k.lossReason == nil {
		t.Errorf("renewed again after %s, lost: %v; want a lost lease", pause, k.lossReason)
	}
}

// TestTheCommandLearnsOfItsSlotAndNotOfTheCaller checks that a command gets the variables of its slot, and not the address and the
// secret with which dispatcher run asked for the slot.
func TestTheCommandLearnsOfItsSlotAndNotOfTheCaller(t *testing.T) {
	t.Parallel()
	slot := 3
	k := &leaseKeeper{runner: &runner{pool: "p"}, held: operators.Lease{Slot: &slot, Token: 7, Lease: 9}}
	got := k.commandEnvironment([]string{"PATH=/bin", "DISPATCHER_URL=http://x", "DISPATCHER_TOKEN=secret", "DISPATCHER_TOKEN_FILE=/secret", "HOME=/"})
	want := []string{"PATH=/bin", "HOME=/", "DISPATCHER_POOL=p", "DISPATCHER_SLOT=3", "DISPATCHER_TOKEN=7", "DISPATCHER_LEASE=9"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
