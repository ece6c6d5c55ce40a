package simulator

import (
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/operators"
)

// TestOnlyLeasesThatStoodCount checks when an arrival in a full external system is a violation: only if more leases than allowed are in
// force. A device that stayed after its lease does not count.
func TestOnlyLeasesThatStoodCount(t *testing.T) {
	t.Parallel()
	const margin = time.Second
	now := time.Now()
	until := func(d time.Duration) *lease { return &lease{until: now.Add(d)} }
	for _, c := range []struct {
		name    string
		kind    breach
		allowed int
		leases  []*lease
		want    Breaches
	}{
		{"within their leases", overCapacity, 2, []*lease{until(1), until(1), until(1)}, Breaches{OverCapacity: 1, MaxExcess: 1}},
		{"one was late", overCapacity, 2, []*lease{until(1), until(1), until(-margin)}, Breaches{}},
		{"one was late, and there were two too many", overCapacity, 1, []*lease{until(1), until(1), until(-margin)}, Breaches{OverCapacity: 1, MaxExcess: 1}},
		{"late by less than the margin", overCapacity, 2, []*lease{until(1), until(1), until(1 - margin)}, Breaches{OverCapacity: 1, MaxExcess: 1}},
		{"strangers", overCapacity, 1, []*lease{nil, nil, nil}, Breaches{OverCapacity: 1, MaxExcess: 2}},
		{"a shared slot", sharedSlot, 1, []*lease{until(1), until(1)}, Breaches{Shared: 1}},
		{"the one before was late", sharedSlot, 1, []*lease{until(1), until(-margin)}, Breaches{}},
		{"a stale token", staleToken, 0, []*lease{until(1)}, Breaches{Stale: 1}},
		{"it came when its lease was over", staleToken, 0, []*lease{until(-margin)}, Breaches{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var s suspectedBreaches
			s.add(&suspectedBreach{kind: c.kind, at: now, allowed: c.allowed, leases: c.leases})
			if got := s.countBreaches(margin); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

// TestSuspicionsBeyondTheBoundCount checks suspicious arrivals of devices whose leases have ended. The first maxSuspicions of them are no
// violations. Each further one must count as a violation.
func TestSuspicionsBeyondTheBoundCount(t *testing.T) {
	t.Parallel()
	var s suspectedBreaches
	for range maxSuspicions + 3 {
		s.add(&suspectedBreach{kind: sharedSlot, at: time.Now(), allowed: 1, leases: []*lease{{}, {}}})
	}
	if got := s.countBreaches(0); got != (Breaches{Shared: 3}) {
		t.Errorf("%+v, want the 3 that were not remembered", got)
	}
}

// TestARenewalReadLateStillCounts checks a lease that was renewed in time, although its device reads the reply only after the original end
// of the lease: the lease counts as in force.
func TestARenewalReadLateStillCounts(t *testing.T) {
	t.Parallel()
	l := newLeases()
	e := newTestExternal(t, 1, l, nil)
	now := time.Now()
	late := newLease(now.Add(-time.Minute), now.Add(-time.Second), func() {})
	late.timer = time.AfterFunc(time.Hour, func() {}) // simulates a machine that stops for a while
	l.add(1, late)
	l.add(2, newLease(now, now.Add(time.Hour), func() {}))
	enterExternal(t, e, 0, 1)
	enterExternal(t, e, 1, 2)
	if got := e.countBreaches(0); got != (Breaches{}) {
		t.Errorf("%+v before the renewal was read", got)
	}
	late.extend(now, now.Add(time.Hour))
	if got := e.countBreaches(0); got != (Breaches{OverCapacity: 1, MaxExcess: 1}) {
		t.Errorf("%+v, want the one that was too many", got)
	}
}

// TestACallerIsNeverLate checks a full external system. Two devices whose leases have ended are no violation, but two callers in one slot
// are. A caller is never excused, because it must leave before its slot is granted again.
func TestACallerIsNeverLate(t *testing.T) {
	t.Parallel()
	e := newTestExternal(t, 1, newLeases(), nil)
	enterExternal(t, e, 0, 1)
	enterExternal(t, e, 0, 2) // their leases are over, because neither device is at work
	if got := e.countBreaches(0); got != (Breaches{}) {
		t.Errorf("%+v of devices whose leases are over", got)
	}
	for token := range int64(2) {
		leave, err := Enter(t.Context(), e.Addr(), "ci/job", 1, 3+token, 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(leave)
	}
	if got := e.countBreaches(0); got != (Breaches{OverCapacity: 1, MaxExcess: 1, Shared: 1}) {
		t.Errorf("%+v, want the two callers in one slot", got)
	}
}

// TestASuccessRecordedTwiceIsAFault checks a task for which two successes were recorded: this is reported,
// whichever output was kept.
func TestASuccessRecordedTwiceIsAFault(t *testing.T) {
	t.Parallel()
	for times, differing := range map[int]int64{1: 0, 2: 1} {
		var records []record
		for token := range times {
			records = append(records, record{grantKey: grantKey{1, int64(token)}, status: statusSucceeded, outcome: outcomeRecorded})
		}
		var v Comparison
		if v.addTask(operators.Task{ID: 1, State: statusSucceeded}, records); v.Differing != differing || v.Compared != 1 {
			t.Errorf("recorded %d times: %+v", times, v)
		}
	}
}
