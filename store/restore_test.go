package store_test

import (
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// leap is how far numbers jump, at least.
const leap = 1_000_000_000

// TestAfterRestore: nothing is granted until the time is over, known grants
// are renewed and not given out again, and no number comes twice.
func TestAfterRestore(t *testing.T) {
	t.Parallel()
	eachDialect(t, func(l *ledger) {
		l.pool("p", 2)
		before, tasks := l.batch(store.Batch{Pool: "p"}, "a", "b", "c")
		held := l.grant(tasks[0], "a", "p", 0)
		if until, err := l.Standstill(l.Context()); err != nil || !until.IsZero() {
			l.Fatalf("standstill until %s, %v, before any restore", until, err)
		}

		until, err := l.AfterRestore(l.Context(), "op")
		l.must(err)
		now, err := l.Clock(l.Context())
		l.must(err)
		if until.Before(now.Add(time.Hour-time.Minute)) || until.After(now.Add(time.Hour)) {
			l.Errorf("until %s from now, want the longest lease, an hour", until.Sub(now))
		}
		if said, err := l.Standstill(l.Context()); err != nil || !said.Equal(until) {
			l.Errorf("standstill until %s, %v; want %s", said, err, until)
		}
		views, err := l.Views(l.Context(), []string{"a", "b"})
		l.must(err)
		if !views[0].Standstill.Equal(until) || !views[1].Standstill.Equal(until) {
			l.Errorf("views say %s and %s, want %s", views[0].Standstill, views[1].Standstill, until)
		}
		l.wantStatuses(l.claim(l.to(tasks[1], "b", "p", 1)), store.ClaimLost)
		if _, err := l.Redeliver(l.Context(), held.Task, held.Token); err == nil {
			l.Error("an old grant was given out again")
		}
		renewed, err := l.Renew(l.Context(), []store.Renewal{{Task: held.Task, Token: held.Token, Device: "a"}})
		if err != nil || !renewed[0].Found {
			l.Errorf("renewal %+v, %v", renewed, err)
		}

		p, err := l.Pool(l.Context(), "p")
		if err != nil || p.Version < leap {
			l.Errorf("pool %+v, %v: want a version far ahead", p, err)
		}
		if changed, err := l.ChangedPools(l.Context(), 15*time.Second); err != nil || len(changed) != 1 {
			l.Errorf("changed pools %+v, %v: want the one that the semaphore must be told of", changed, err)
		}
		after, more := l.batch(store.Batch{Pool: "p"}, "d")
		if after.ID < before.ID+leap || more[0] < tasks[2]+leap {
			l.Errorf("batch %d and task %d after %d and %d: want them far ahead", after.ID, more[0], before.ID, tasks[2])
		}
		events, err := l.Events(l.Context(), store.EventFilter{Kind: "ledger.restored"})
		if err != nil || len(events) != 1 || events[0].Actor != "op" || events[0].ID < leap {
			l.Errorf("events %+v, %v", events, err)
		}

		l.exec(`UPDATE restores SET until = {now}`)
		if g := l.grant(tasks[1], "b", "p", 1); g.Token < held.Token+leap || g.Token >= 1<<53 {
			l.Errorf("token %d after %d: want it far ahead", g.Token, held.Token)
		}
		if _, err := l.Redeliver(l.Context(), held.Task, held.Token); err != nil {
			l.Errorf("redelivery afterwards: %v", err)
		}
	})
}

// TestStandstillIsAtLeastTheDefaultLease, and that of batches with open tasks.
func TestStandstillIsTheLongestLease(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	_, _, err := l.PutPool(l.Context(), "op", "p", store.PoolSpec{Capacity: 1, Lease: time.Second})
	l.must(err)
	expect := func(want time.Duration) {
		l.Helper()
		now, err := l.Clock(l.Context())
		l.must(err)
		until, err := l.AfterRestore(l.Context(), "op")
		l.must(err)
		if got := until.Sub(now); got < want || got > want+30*time.Second {
			l.Errorf("nothing granted for %s, want %s", got, want)
		}
	}
	expect(300 * time.Second)
	_, tasks := l.batch(store.Batch{Pool: "p", Lease: 2 * time.Hour}, "a")
	expect(2 * time.Hour)
	l.exec(`UPDATE tasks SET state = 'succeeded' WHERE id = $1`, tasks[0])
	l.exec(`DELETE FROM restores`)
	expect(300 * time.Second)
	// Anew each time, and never less than was said before.
	l.batch(store.Batch{Pool: "p", Lease: time.Hour}, "a")
	expect(time.Hour)
	l.exec(`UPDATE batches SET lease_ms = 0`)
	first, err := l.Standstill(l.Context())
	l.must(err)
	if said, err := l.AfterRestore(l.Context(), "op"); err != nil || !said.Equal(first) {
		l.Errorf("said until %s, %v; want %s", said, err, first)
	}
	if second, err := l.Standstill(l.Context()); err != nil || !second.Equal(first) {
		l.Errorf("until %s and then %s, %v: want it never sooner", first, second, err)
	}
}
