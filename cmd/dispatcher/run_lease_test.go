package main

import (
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

// A renewal that arrives after the guard has begun to end the command has no effect. The command is
// reported as ended because of its lease, not because of the signal.
func TestARenewalThatComesTooLateIsALostLease(t *testing.T) {
	t.Parallel()
	k := &keeper{runner: &runner{grace: time.Minute}, held: operators.Lease{Ends: time.Now().Add(30 * time.Second)}}
	renewed := operators.Lease{Ends: time.Now().Add(time.Hour), LeaseMS: time.Hour.Milliseconds()}
	if pause := k.noted(renewal{lease: renewed}, nil); pause >= 0 || k.lost == nil {
		t.Errorf("renewed again after %s, lost: %v; want a lost lease", pause, k.lost)
	}
}
