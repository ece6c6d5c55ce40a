package store_test

import (
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// minIDJump is the minimum number by which ProtectAfterRestore must increase the next ids and fencing tokens.
const minIDJump = 1_000_000_000

// TestAfterRestore checks a restored ledger. Until the standstill of a pool is over, nothing may be granted, and known grants may be
// renewed but not redelivered. No id and no token may be used twice.
func TestAfterRestore(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 2)
		before, tasks := l.queueBatch(store.Batch{Pool: "p"}, "a", "b", "c")
		held := l.mustGrant(tasks[0], "a", "p", 0)
		l.queueBatch(store.Batch{Pool: "p"}, "a") // After this, the view of device a has more rows.
		if stands, err := l.Standstill(l.Context()); err != nil || stands.Pools != 0 {
			l.Fatalf("standstill %+v, %v, before any restore", stands, err)
		}

		until, err := l.ProtectAfterRestore(l.Context(), "op", 0)
		l.must(err)
		now, err := l.Clock(l.Context())
		l.must(err)
		if until.Before(now.Add(time.Hour-time.Minute)) || until.After(now.Add(time.Hour)) {
			l.Errorf("until %s from now, want the longest lease, an hour", until.Sub(now))
		}
		if stands, err := l.Standstill(l.Context()); err != nil || stands.Pools != 1 || !stands.Last.Equal(until) {
			l.Errorf("standstill %+v, %v; want until %s", stands, err, until)
		}
		views, err := l.DeviceViews(l.Context(), []string{"a", "b"})
		l.must(err)
		if of := views[1].Candidates; !views[0].Standstill.Equal(until) || len(of) != 1 || !of[0].Standstill.Equal(until) {
			l.Errorf("views say %s and %+v, want %s", views[0].Standstill, of, until)
		}
		l.wantStatuses(l.claimAll(l.newClaim(tasks[1], "b", "p", 1)), store.ClaimLost)
		if _, err := l.Redeliver(l.Context(), held.Task, held.Token); err == nil {
			l.Error("an old grant was given out again")
		}
		renewed, err := l.Renew(l.Context(), []store.Renewal{{Task: held.Task, Token: held.Token, Device: "a"}})
		if err != nil || !renewed[0].Found {
			l.Errorf("renewal %+v, %v", renewed, err)
		}

		p, err := l.Pool(l.Context(), "p")
		if err != nil || p.Version < minIDJump {
			l.Errorf("pool %+v, %v: want a version far ahead", p, err)
		}
		if changed, err := l.ChangedPools(l.Context(), 15*time.Second); err != nil || len(changed) != 1 {
			l.Errorf("changed pools %+v, %v: want the one that the semaphore must be told of", changed, err)
		}
		after, more := l.queueBatch(store.Batch{Pool: "p"}, "d")
		if after.ID < before.ID+minIDJump || more[0] < tasks[2]+minIDJump {
			l.Errorf("batch %d and task %d after %d and %d: want them far ahead", after.ID, more[0], before.ID, tasks[2])
		}
		events, err := l.Events(l.Context(), store.EventFilter{Kind: "ledger.restored"})
		if err != nil || len(events) != 1 || events[0].Actor != "op" || events[0].ID < minIDJump {
			l.Errorf("events %+v, %v", events, err)
		}

		l.exec(`UPDATE pools SET stands_until = {now}`)
		if g := l.mustGrant(tasks[1], "b", "p", 1); g.Token < held.Token+minIDJump || g.Token >= 1<<53 {
			l.Errorf("token %d after %d: want it far ahead", g.Token, held.Token)
		}
		if _, err := l.Redeliver(l.Context(), held.Task, held.Token); err != nil {
			l.Errorf("redelivery afterwards: %v", err)
		}
	})
}

// TestStandstillIsTheLongestLease checks the length of the standstill after a restore. It must be at least 300 s, and at least the longest
// lease of the pool and of its batches with open tasks.
func TestStandstillIsTheLongestLease(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	_, _, err := l.PutPool(l.Context(), "op", "p", store.PoolSpec{Capacity: 1, Lease: time.Second})
	l.must(err)
	expect := func(want time.Duration) {
		l.Helper()
		now, err := l.Clock(l.Context())
		l.must(err)
		until, err := l.ProtectAfterRestore(l.Context(), "op", 0)
		l.must(err)
		// The end of the standstill is stored in whole milliseconds, but the clock has microseconds.
		if got := until.Sub(now); got <= want-time.Millisecond || got > want+30*time.Second {
			l.Errorf("nothing granted for %s, want %s", got, want)
		}
	}
	expect(300 * time.Second)
	_, tasks := l.queueBatch(store.Batch{Pool: "p", Lease: 2 * time.Hour}, "a")
	expect(2 * time.Hour)
	l.exec(`UPDATE tasks SET state = 'succeeded' WHERE id = $1`, tasks[0])
	l.exec(`UPDATE pools SET stands_until = NULL`)
	expect(300 * time.Second)
	// Each call of ProtectAfterRestore computes the end of the standstill again. The end must never be earlier than before.
	l.queueBatch(store.Batch{Pool: "p", Lease: time.Hour}, "a")
	expect(time.Hour)
	l.exec(`UPDATE batches SET lease_ms = 0`)
	stands, err := l.Standstill(l.Context())
	l.must(err)
	first := stands.Last
	if said, err := l.ProtectAfterRestore(l.Context(), "op", 0); err != nil || !said.Equal(first) {
		l.Errorf("said until %s, %v; want %s", said, err, first)
	}
	if second, err := l.Standstill(l.Context()); err != nil || !second.Last.Equal(first) {
		l.Errorf("until %s and then %s, %v: want it never sooner", first, second.Last, err)
	}
}

// TestEachPoolStandsStillForItsOwnLeases checks the length of the standstill of each pool after a restore. It must be the maximum of
// several times: 300 s, each lease of the pool and of its grants, batches and tasks, and the time that the operator requests. If the
// token of a caller covers the pool, the longest lease of a caller is one of these times, too.
func TestEachPoolStandsStillForItsOwnLeases(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		put := func(pool string, lease, longest time.Duration) {
			l.Helper()
			_, _, err := l.PutPool(l.Context(), "op", pool, store.PoolSpec{Capacity: 2, Lease: lease, Longest: longest})
			l.must(err)
		}
		for _, pool := range []string{"plain", "of-batch", "of-grant", "of-task", "ci-day", "gone", "leased"} {
			put(pool, time.Minute, 0)
		}
		put("of-pool", 20*time.Minute, 0)
		put("ci-short", time.Minute, 2*time.Hour)
		l.queueBatch(store.Batch{Pool: "of-batch", Lease: 30 * time.Minute}, "a")
		_, tasks := l.queueBatch(store.Batch{Pool: "of-grant", Lease: 40 * time.Minute}, "b")
		l.mustGrant(tasks[0], "b", "of-grant", 0)
		l.exec(`UPDATE batches SET lease_ms = 0 WHERE pool = 'of-grant'`)
		open := func(pool string, length time.Duration) {
			_, err := l.OpenLease(l.Context(), store.NewLease{Pool: pool, Holder: store.HolderDevice("op", pool), Lease: length, WaitFor: time.Hour})
			l.must(err)
		}
		open("leased", 0)
		open("of-task", 50*time.Minute)
		l.exec(`UPDATE batches SET system = FALSE WHERE pool = 'of-task'`)
		l.must(l.DeletePool(l.Context(), "op", "gone"))
		for name, pools := range map[string][]string{"ci": {"ci-*", "nowhere"}, "sets": nil, "revoked": {"plain"}} {
			made, err := l.CreateToken(l.Context(), "op", store.Token{Name: name, Role: "caller", Pools: pools, LimitSets: []string{"*"}}, []byte(name))
			l.must(err)
			if name == "revoked" {
				_, err := l.RevokeToken(l.Context(), "op", made.ID)
				l.must(err)
			}
		}
		expect := func(want map[string]time.Duration) {
			l.Helper()
			now, err := l.Clock(l.Context())
			l.must(err)
			for pool, want := range want {
				p, err := l.Pool(l.Context(), pool)
				l.must(err)
				if got := p.StandsUntil.Sub(now); got > want || got < want-2*time.Minute {
					l.Errorf("pool %s stands still for %s, want %s", pool, got, want)
				}
			}
		}
		_, err := l.ProtectAfterRestore(l.Context(), "op", 0)
		l.must(err)
		put("gone", time.Minute, 0)
		put("new", time.Minute, 0)
		usual := 5 * time.Minute
		expect(map[string]time.Duration{
			"plain": usual, "gone": usual, "new": usual, "of-pool": 20 * time.Minute, "of-batch": 30 * time.Minute, "of-grant": 40 * time.Minute,
			"of-task": 50 * time.Minute, "ci-short": 2 * time.Hour, "ci-day": 24 * time.Hour, "leased": 24 * time.Hour,
		})
		_, err = l.ProtectAfterRestore(l.Context(), "op", 3*time.Hour)
		l.must(err)
		put("newer", time.Minute, 0)
		expect(map[string]time.Duration{"plain": 3 * time.Hour, "newer": 3 * time.Hour, "ci-short": 3 * time.Hour, "ci-day": 24 * time.Hour})

		// The standstill of each pool ends independently of other pools.
		l.exec(`UPDATE pools SET stands_until = {now} WHERE name = 'plain'`)
		_, tasks = l.queueBatch(store.Batch{Pool: "plain"}, "c")
		l.mustGrant(tasks[0], "c", "plain", 0)
		_, tasks = l.queueBatch(store.Batch{Pool: "ci-day"}, "d")
		l.wantStatuses(l.claimAll(l.newClaim(tasks[0], "d", "ci-day", 0)), store.ClaimLost)
	})
}
