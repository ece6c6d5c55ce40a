package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

func TestRenewalsAreWrittenWhenWorthIt(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 4)
		l.putPool("ages", 4)
		_, ids := l.queueBatch(store.Batch{Pool: "ages", Lease: 30 * time.Minute}, "old")
		_, fresh := l.queueBatch(store.Batch{Pool: "p"}, "fresh")
		old, other := l.mustGrant(ids[0], "old", "ages", 0), l.mustGrant(fresh[0], "fresh", "p", 1)
		renewals := []store.Renewal{
			{Task: other.Task, Token: other.Token, Device: "fresh"},
			{Task: 99999, Token: 1, Device: "fresh"},
			{Task: old.Task, Token: old.Token + 50, Device: "old"},
			{Task: old.Task, Token: old.Token, Device: "fresh"},
			{Task: old.Task, Token: old.Token, Device: "old"},
		}
		for _, step := range []struct {
			age     time.Duration // in addition to the age of the previous step
			written bool
		}{{0, false}, {9 * time.Minute, false}, {2 * time.Minute, true}, {0, false}} {
			l.ageGrants("ages", step.age)
			old.LeaseUntil = old.LeaseUntil.Add(-step.age)
			outcomes, err := l.Renew(l.Context(), renewals)
			l.must(err)
			if o := outcomes[0]; !o.Found || !o.Grant.LeaseUntil.Equal(other.LeaseUntil) {
				l.Fatalf("a fresh lease: %+v, want it unchanged", o)
			}
			if outcomes[1].Found || outcomes[1].Superseded || outcomes[2].Found || !outcomes[2].Superseded || outcomes[3].Found {
				l.Fatalf("no grants: %+v", outcomes)
			}
			o := outcomes[4]
			if !o.Found || o.Grant.Remaining <= 0 || o.Grant.Remaining > 30*time.Minute {
				l.Fatalf("outcome %+v", o)
			}
			if written := o.Grant.LeaseUntil.After(old.LeaseUntil); written != step.written {
				l.Fatalf("%s later: written %t, want it after a third only", step.age, written)
			}
			old.LeaseUntil = o.Grant.LeaseUntil
		}
	})
}

func TestRenewalsEnd(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 4)
		_, bounded := l.queueBatch(store.Batch{Pool: "p", Lease: 40 * time.Second, MaxRun: time.Minute}, "bounded")
		_, ids := l.queueBatch(store.Batch{Pool: "p", Lease: time.Millisecond}, "lapsed")
		_, cancelled := l.queueBatch(store.Batch{Pool: "p", Lease: time.Minute}, "cancelled")
		b, gone, c := l.mustGrant(bounded[0], "bounded", "p", 0), l.mustGrant(ids[0], "lapsed", "p", 1), l.mustGrant(cancelled[0], "cancelled", "p", 2)
		if want := b.GrantedAt.Add(time.Minute); !b.MaxUntil.Equal(want) {
			l.Fatalf("ends at %s, want %s", b.MaxUntil, want)
		}
		if want := c.GrantedAt.Add(time.Hour); !c.MaxUntil.Equal(want) {
			l.Fatalf("ends at %s, want %s", c.MaxUntil, want)
		}
		l.awaitLapsed()
		l.must(l.AskCancel(l.Context(), c.Task, c.Token, "max_run"))
		l.must(l.AskCancel(l.Context(), c.Task, c.Token, "cancelled"))
		l.must(l.AskCancel(l.Context(), c.Task, c.Token+1, "stale"))
		l.ageGrants("p", 20*time.Second) // as if another 20 s had passed
		outcomes, err := l.Renew(l.Context(), []store.Renewal{
			{Task: b.Task, Token: b.Token, Device: "bounded"},
			{Task: gone.Task, Token: gone.Token, Device: "lapsed"},
			{Task: c.Task, Token: c.Token, Device: "cancelled"},
		})
		l.must(err)
		if o := outcomes[0].Grant; !o.LeaseUntil.Equal(o.MaxUntil) {
			l.Errorf("renewed until %s, want its end %s", o.LeaseUntil, o.MaxUntil)
		}
		if o := outcomes[1]; !o.Found || o.Grant.Remaining > 0 {
			l.Errorf("a lapsed lease was renewed: %+v", o)
		}
		if o := outcomes[2]; !o.Found || o.Grant.CancelWhy != "max_run" || !o.Grant.LeaseUntil.Equal(c.LeaseUntil.Add(-20*time.Second)) {
			l.Errorf("a cancelled lease was renewed: %+v", o)
		}
	})
}

func TestRedeliver(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		_, ids := l.queueBatch(store.Batch{Pool: "p", Kind: "k"}, "a")
		g := l.mustGrant(ids[0], "a", "p", 0)
		for want := 1; want <= 2; want++ {
			again, err := l.Redeliver(l.Context(), g.Task, g.Token)
			l.must(err)
			if again.Redelivered != want || again.Token != g.Token || again.Kind != "k" || again.Remaining <= 0 {
				l.Fatalf("redelivery %d: %+v", want, again)
			}
		}
		if _, err := l.Redeliver(l.Context(), g.Task, g.Token+1); !errors.Is(err, store.ErrNotFound) {
			l.Fatalf("another token: %v", err)
		}
		l.recordResult(g, store.BySuccess, "")
		if _, err := l.Redeliver(l.Context(), g.Task, g.Token); !errors.Is(err, store.ErrNotFound) {
			l.Fatalf("an ended grant: %v", err)
		}
	})
}
