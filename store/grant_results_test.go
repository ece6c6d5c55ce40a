package store_test

import (
	"testing"

	"github.com/fleetslots/dispatcher/store"
)

// TestResultsGoInOneTransaction checks that the results of several grants in force are recorded in one transaction. If another transaction
// has locked one of the tasks, only the result of this task may be delayed.
func TestResultsGoInOneTransaction(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 3)
	_, ids := l.queueBatch(store.Batch{Pool: "p"}, "a", "b", "c")
	var results []store.Result
	for i, device := range []string{"a", "b", "c"} {
		g := l.mustGrant(ids[i], device, "p", i)
		results = append(results, store.Result{Device: device, Task: g.Task, Token: g.Token, Cause: store.BySuccess})
	}
	tx, err := l.DB().BeginTx(l.Context(), nil)
	l.must(err)
	defer func() { _ = tx.Rollback() }()
	_, err = tx.ExecContext(l.Context(), `SELECT 1 FROM tasks WHERE id = $1 FOR UPDATE`, ids[1])
	l.must(err)
	done := make(chan []store.ResultOutcome)
	go func() { done <- l.RecordResults(l.Context(), results, settleEnding) }()
	var together int
	for together == 0 {
		l.must(l.DB().QueryRowContext(l.Context(), `SELECT count(*) FROM tasks WHERE state = 'succeeded'`).Scan(&together))
	}
	var transactions int
	l.must(l.DB().QueryRowContext(l.Context(), `SELECT count(DISTINCT xmin::text) FROM attempts`).Scan(&transactions))
	if together != 2 || transactions != 1 {
		t.Errorf("%d recorded in %d transactions, while the third is locked", together, transactions)
	}
	l.must(tx.Rollback())
	for i, outcome := range <-done {
		if outcome.Err != nil || outcome.Kind != store.ResultRecorded {
			t.Errorf("%d: %+v", i, outcome)
		}
	}
}

// TestALockedPoolHoldsUpNoOther checks a call with claims in several pools while one pool is being resized. The claims in this pool must
// get ClaimLocked, and the other claims must be granted.
func TestALockedPoolHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("free", 1)
	l.putPool("locked", 1)
	_, a := l.queueBatch(store.Batch{Pool: "free"}, "a")
	_, b := l.queueBatch(store.Batch{Pool: "locked"}, "b")
	tx, err := l.DB().BeginTx(l.Context(), nil)
	l.must(err)
	_, err = tx.ExecContext(l.Context(), `SELECT pg_advisory_xact_lock(20060, hashtext('locked'))`)
	l.must(err)
	claims := []store.Claim{l.newClaim(b[0], "b", "locked", 0), l.newClaim(a[0], "a", "free", 0)}
	outcomes, err := l.Claim(l.Context(), claims, false)
	l.must(err)
	if outcomes[0].Status != store.ClaimLocked || outcomes[1].Status != store.ClaimGranted {
		t.Errorf("%v, %v", outcomes[0].Status, outcomes[1].Status)
	}
	l.must(tx.Rollback())
	l.wantStatuses(l.claimAll(claims[0]), store.ClaimGranted)
}
