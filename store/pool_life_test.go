package store_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

func (l *ledger) poolEvents(pool string) (texts []string) {
	l.Helper()
	events, err := l.Events(l.Context(), store.EventFilter{Pool: pool})
	l.must(err)
	for _, e := range events {
		if e.Task == 0 && e.Batch == 0 {
			texts = append(texts, e.Kind+" "+e.Actor+" "+e.Detail)
		}
	}
	return texts
}

func TestPoolsChange(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	old := l.putPool("p", 7)
	pause := func(spec *store.PoolSpec) error { spec.Paused = true; return nil }
	p, err := l.ChangePool(l.Context(), "ann", "p", "it is slow", pause)
	l.must(err)
	if !p.Paused || p.Capacity != 7 || p.Lease != time.Hour || p.Version != old.Version+1 {
		l.Fatalf("paused: %+v", p)
	}
	again, err := l.ChangePool(l.Context(), "ann", "p", "it is slow", pause)
	if err != nil || again.Version != p.Version {
		l.Fatalf("the same again: %+v, %v", again, err)
	}
	refused := errors.New("no")
	if _, err := l.ChangePool(l.Context(), "ann", "p", "", func(spec *store.PoolSpec) error { spec.Capacity = 1; return refused }); !errors.Is(err, refused) {
		l.Errorf("refused: %v", err)
	}
	if now, err := l.Pool(l.Context(), "p"); err != nil || !cmp.Equal(now, p) {
		l.Errorf("%+v, %v; want %+v", now, err, p)
	}
	if _, err := l.ChangePool(l.Context(), "ann", "q", "", pause); !errors.Is(err, store.ErrNotFound) {
		l.Errorf("no pool: %v", err)
	}
	want := []string{"pool.created op capacity=7 lease=1h0m0s paused=false", "pool.changed ann paused=false -> true because: it is slow"}
	if got := l.poolEvents("p"); !slices.Equal(got, want) {
		l.Errorf("events %q, want %q", got, want)
	}
}

// TestPoolPauseIsKept checks that the ledger stores who paused a pool, when and why, for as long as the pause lasts.
func TestPoolPauseIsKept(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		put := func(actor, note string, capacity int, paused bool) store.Pool {
			p, err := l.ChangePool(l.Context(), actor, "p", note, func(spec *store.PoolSpec) error {
				spec.Capacity, spec.Paused = capacity, paused
				return nil
			})
			l.must(err)
			return p
		}
		if p := l.putPool("p", 7); p.PausedBy != "" || p.PausedAt != nil || p.PauseReason != "" {
			l.Errorf("new: %+v", p)
		}
		first := put("ann", "it is slow", 7, true)
		if first.PausedBy != "ann" || first.PauseReason != "it is slow" || first.PausedAt == nil || first.PausedAt.Sub(first.UpdatedAt).Abs() > time.Minute {
			l.Errorf("paused: %+v", first)
		}
		resized := put("bob", "", 3, true)
		if resized.PausedBy != "ann" || resized.PauseReason != "it is slow" || resized.PausedAt == nil || !resized.PausedAt.Equal(first.PausedAt.Truncate(time.Millisecond)) {
			l.Errorf("changed while paused: %+v, want what %+v says", resized, first)
		}
		if p := put("bob", "", 3, false); p.PausedBy != "" || p.PausedAt != nil || p.PauseReason != "" {
			l.Errorf("resumed: %+v", p)
		}
		if p := put("bob", "", 3, true); p.PausedBy != "bob" || p.PauseReason != "" || p.PausedAt == nil {
			l.Errorf("paused again: %+v", p)
		}
	})
}

func TestPoolsAreDeletedWhenNothingIsOpen(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 2)
		old := l.putPool("p", 3)
		b, ids := l.queueBatch(store.Batch{Pool: "p"}, "a")
		g := l.mustGrant(ids[0], "a", "p", 0)
		if err := l.DeletePool(l.Context(), "ann", "p"); !errors.Is(err, store.ErrOpenTasks) {
			l.Fatalf("deleted while a task runs: %v", err)
		}
		l.recordResult(g, store.BySuccess, "")
		l.must(l.DeletePool(l.Context(), "ann", "p"))
		if err := l.DeletePool(l.Context(), "ann", "p"); !errors.Is(err, store.ErrNotFound) {
			l.Errorf("deleted twice: %v", err)
		}
		if _, err := l.Pool(l.Context(), "p"); !errors.Is(err, store.ErrNotFound) {
			l.Errorf("read: %v", err)
		}
		if _, err := l.Occupancy(l.Context(), "p", 9); !errors.Is(err, store.ErrNotFound) {
			l.Errorf("its slots: %v", err)
		}
		if _, err := l.CreateBatch(l.Context(), "op", store.Batch{Pool: "p"}, tasksFor([]string{"a"})); !errors.Is(err, store.ErrUnknownPool) {
			l.Errorf("a batch: %v", err)
		}
		listed, err := l.Pools(l.Context(), "", 9)
		l.must(err)
		changed, err := l.ChangedPools(l.Context(), time.Hour)
		l.must(err)
		stats, err := l.PoolStats(l.Context())
		l.must(err)
		if len(listed)+len(changed)+len(stats) != 0 {
			l.Errorf("still listed: %v %v %v", listed, changed, stats)
		}
		if kept, err := l.Batch(l.Context(), b.ID); err != nil || kept.Counts[store.Succeeded] != 1 {
			l.Errorf("its batch: %+v, %v", kept, err)
		}
		// This task of the deleted pool is made pending without RetryTask. It must never be granted.
		l.exec(`UPDATE tasks SET state = 'pending' WHERE id = $1`, ids[0])
		l.wantStatuses(l.claimAll(l.newClaim(ids[0], "a", "p", 0)), claimLost)
		if views, err := l.DeviceViews(l.Context(), []string{"a"}); err != nil || len(views[0].Candidates) != 0 {
			l.Errorf("offered: %+v, %v", views, err)
		}
		back, created, err := l.PutPool(l.Context(), "op", "p", store.PoolSpec{Capacity: 1, Lease: time.Hour})
		l.must(err)
		if !created || back.Version <= old.Version+1 || !back.CreatedAt.After(old.CreatedAt) || back.Capacity != 1 {
			l.Errorf("created anew: %t %+v, before %+v", created, back, old)
		}
		want := []string{
			"pool.created op capacity=2 lease=1h0m0s paused=false", "pool.changed op capacity=2 -> 3",
			"pool.deleted ann ", "pool.created op capacity=1 lease=1h0m0s paused=false",
		}
		if got := l.poolEvents("p"); !slices.Equal(got, want) {
			l.Errorf("events %q, want %q", got, want)
		}
	})
}

// TestDeleteWaitsForABatchInCreation deletes a pool while a batch is being created in it. The deletion must wait for the batch, and must
// then be refused because the batch has open tasks.
func TestDeleteWaitsForABatchInCreation(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 2)
	begun, goOn := make(chan struct{}), make(chan struct{})
	created := make(chan error, 1)
	go func() {
		_, err := l.CreateBatch(l.Context(), "op", store.Batch{Pool: "p"}, func(yield func(store.NewTask, error) bool) {
			close(begun)
			<-goOn
			yield(store.NewTask{Device: "a"}, nil)
		})
		created <- err
	}()
	<-begun
	deleted := make(chan error, 1)
	go func() { deleted <- l.DeletePool(l.Context(), "op", "p") }()
	l.awaitCondition(func() bool { return l.countRows("pg_stat_activity WHERE wait_event_type = 'Lock'") > 0 })
	close(goOn)
	l.must(<-created)
	if err := <-deleted; !errors.Is(err, store.ErrOpenTasks) {
		t.Fatalf("deleted: %v, want its open task to keep it", err)
	}
}

// TestABatchInCreationSeesTheDeletion creates a batch before the deletion of its pool is committed. The batch must be refused.
func TestABatchInCreationSeesTheDeletion(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 2)
	tx, err := l.DB().BeginTx(l.Context(), nil)
	l.must(err)
	defer tx.Rollback()
	for _, step := range []string{`SELECT name FROM pools WHERE name = 'p' FOR UPDATE`, `UPDATE pools SET deleted_at = now() WHERE name = 'p'`} {
		_, err = tx.ExecContext(l.Context(), step)
		l.must(err)
	}
	created := make(chan error, 1)
	go func() {
		_, err := l.CreateBatch(l.Context(), "op", store.Batch{Pool: "p"}, tasksFor([]string{"a"}))
		created <- err
	}()
	l.awaitCondition(func() bool { return l.countRows("pg_stat_activity WHERE wait_event_type = 'Lock'") > 0 })
	l.must(tx.Commit())
	if err := <-created; !errors.Is(err, store.ErrUnknownPool) {
		t.Fatalf("created: %v, want it refused", err)
	}
}

// forceRelease calls ForceRelease for a slot of pool p.
func (l *ledger) forceRelease(slot int, f store.ForcedRelease) (store.Grant, error) {
	f.Actor, f.Reason = "ann", "it hangs"
	return l.ForceRelease(l.Context(), "p", slot, f, settleEnding)
}

func TestAForcedReleaseAsksTheHolder(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 4)
		_, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 9}, "a", "b", "c")
		a, b := l.mustGrant(ids[0], "a", "p", 0), l.mustGrant(ids[1], "b", "p", 1)
		for name, bad := range map[string]struct {
			slot int
			f    store.ForcedRelease
		}{"free slot": {3, store.ForcedRelease{}}, "another token": {0, store.ForcedRelease{Token: b.Token}}, "another token, now": {0, store.ForcedRelease{Token: b.Token, AtOnce: true}}} {
			if _, err := l.forceRelease(bad.slot, bad.f); !errors.Is(err, store.ErrNotFound) {
				l.Errorf("%s: %v", name, err)
			}
		}
		asked, err := l.forceRelease(0, store.ForcedRelease{Token: a.Token})
		l.must(err)
		if asked.Token != a.Token || asked.LeaseID != a.LeaseID {
			l.Fatalf("released %+v, want %+v", asked, a)
		}
		l.wantTask(ids[0], store.Dispatched)
		l.wantStatuses(l.claimAll(l.newClaim(ids[2], "c", "p", 0)), claimConflict) // The slot is not free before the result or the end of the lease.
		if o := l.recordResult(a, store.ByFailure, ""); o.State != store.Cancelled {
			l.Fatalf("after it was asked, a failure came to %s", o.State)
		}
		if n := l.countRows("events WHERE actor = 'ann' AND kind = 'slot.release_asked' AND detail LIKE 'slot=% because: it hangs'"); n != 1 {
			l.Errorf("%d events, want 1", n)
		}
	})
}

func TestAForcedReleaseFencesTheHolder(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 4)
		_, ids := l.queueBatch(store.Batch{Pool: "p", MaxAttempts: 9}, "b", "c")
		b := l.mustGrant(ids[0], "b", "p", 1)
		gone, err := l.forceRelease(1, store.ForcedRelease{AtOnce: true})
		l.must(err)
		if gone.Token != b.Token || gone.LeaseID != b.LeaseID {
			l.Fatalf("released %+v, want %+v", gone, b)
		}
		if task := l.wantTask(ids[0], store.Cancelled); task.Attempts != 1 {
			l.Errorf("task %+v", task)
		}
		c := l.mustGrant(ids[1], "c", "p", 1)
		if o := l.recordResult(b, store.BySuccess, ""); o.Kind != store.ResultLate || o.State != store.Cancelled || o.Ended != nil {
			l.Fatalf("the fenced holder's result: %+v", o)
		}
		if now, err := l.GrantByToken(l.Context(), "p", c.Token); err != nil || now.Device != "c" || now.Slot != 1 || now.Remaining <= 0 {
			l.Errorf("the new holder: %+v, %v", now, err)
		}
		l.wantNoGrant("the old one", "p", b.Token)
		l.wantNoGrant("nobody", "p", c.Token+1)
		l.wantNoGrant("in another pool", "q", c.Token)
		l.ageGrants("p", 2*time.Hour)
		l.wantNoGrant("after its lease", "p", c.Token)
		attempts := l.countRows("attempts WHERE ended_by = 'released'")
		events := l.countRows("events WHERE actor = 'ann' AND kind = 'slot.released' AND detail LIKE 'slot=% because: it hangs'")
		if attempts != 1 || events != 1 {
			l.Errorf("%d attempts released, %d events; want 1 and 1", attempts, events)
		}
	})
}

func (l *ledger) wantNoGrant(what, pool string, token int64) {
	l.Helper()
	if g, err := l.GrantByToken(l.Context(), pool, token); !errors.Is(err, store.ErrNotFound) {
		l.Errorf("%s is alive: %+v, %v", what, g, err)
	}
}
