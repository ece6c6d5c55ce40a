package store_test

import (
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// The tests below hold a transaction open where two replicas would meet, so
// that each meets the other half-way every time. SQLite has one writer and no
// such places.

// during runs call while another transaction has made a change and not yet
// committed it; it commits once call waits for it, or has returned.
func (l *ledger) during(change string, args []any, call func()) (waited bool) {
	l.Helper()
	tx, err := l.DB().BeginTx(l.Context(), nil)
	l.must(err)
	defer tx.Rollback()
	_, err = tx.ExecContext(l.Context(), l.Text(change), args...)
	l.must(err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	l.until(func() bool {
		select {
		case <-done:
			return true
		default:
			waited = l.waiting()
			return waited
		}
	})
	l.must(tx.Commit())
	<-done
	return waited
}

// waiting tells whether a statement on this database waits for a lock.
func (l *ledger) waiting() bool {
	var n int
	err := l.DB().QueryRowContext(l.Context(),
		`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n)
	l.must(err)
	return n > 0
}

func TestAGrantRenewedMeanwhileIsNotReaped(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.pool("p", 1)
	_, ids := l.batch(store.Batch{Pool: "p", Lease: time.Millisecond}, "a")
	l.grant(ids[0], "a", "p", 0)
	now := l.untilLapsed()
	l.during(`UPDATE grants SET lease_until = {now} + 60000 * {ms} WHERE task = $1`, []any{ids[0]}, func() {
		if reaped, err := l.Reap(l.Context(), now, 10, settle); err != nil || len(reaped) != 0 {
			t.Errorf("reaped %+v, %v", reaped, err)
		}
	})
	l.wantTask(ids[0], store.Dispatched)
}

func TestAClaimCountsAgainstTheCapacityThatIsBeingSet(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.pool("p", 2)
	_, ids := l.batch(store.Batch{Pool: "p"}, "a", "b")
	l.grant(ids[0], "a", "p", 1)
	// What PutPool does, held open: the claim must wait, and then see it.
	lockAndLower := `WITH locked AS (SELECT pg_advisory_xact_lock(20060, hashtext('p')))
		UPDATE pools SET capacity = 1 FROM locked WHERE name = 'p'`
	l.during(lockAndLower, nil, func() {
		outcomes, err := l.Claim(l.Context(), []store.Claim{l.to(ids[1], "b", "p", 0)})
		if err != nil || outcomes[0].Status != conflict {
			t.Errorf("claim: %+v, %v; want a conflict", outcomes, err)
		}
	})
}

func TestAResizeWaitsForClaims(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.pool("p", 2)
	waited := l.during(`SELECT pg_advisory_xact_lock_shared(20060, hashtext('p'))`, nil, func() {
		l.resize("p", 1)
	})
	if !waited {
		t.Error("a capacity was changed beside a claim that counts against the old one")
	}
}
