package main

import (
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

// A renewal that comes when the guard has begun to end the command saves it no more: the command is
// reported as ended for its lease, and not by the signal that ended it.
func TestARenewalThatComesTooLateIsALostLease(t *testing.T) {
	t.Parallel()
	k := &keeper{runner: &runner{grace: time.Minute}, held: operators.Lease{Ends: time.Now().Add(30 * time.Second)}}
	renewed := operators.Lease{Ends: time.Now().Add(time.Hour), LeaseMS: time.Hour.Milliseconds()}
	if pause := k.noted(renewal{lease: renewed}, nil); pause >= 0 || k.lost == nil {
		t.Errorf("renewed again after %s, lost: %v; want a lost lease", pause, k.lost)
	}
}
