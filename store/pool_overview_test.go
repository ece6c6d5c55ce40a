package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

// TestOverview checks that the overview of pools shows the same values as the queries for one pool and one batch.
func TestOverview(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 5)
		l.putPool("idle", 3)
		names := deviceNames(6)
		batch, ids := l.queueBatch(store.Batch{Pool: "p"}, names...)
		l.recordResult(l.mustGrant(ids[0], names[0], "p", 0), store.BySuccess, "")
		for i := 1; i <= 2; i++ {
			g := l.mustGrant(ids[i], names[i], "p", 0)
			r := store.Result{Device: g.Device, Task: g.Task, Token: g.Token, Cause: store.ByReject, Error: "no <route>"}
			l.must(l.RecordResults(l.Context(), []store.Result{r}, settleEnding)[0].Err)
		}
		l.mustGrant(ids[3], names[3], "p", 4)

		views, err := l.PoolOverviews(l.Context(), "", 10, 100)
		l.must(err)
		if len(views) != 2 || views[0].Oldest != nil || views[1].Pool.Name != "p" || views[1].Held != 1 || views[1].Waiting != 2 || views[1].Oldest == nil {
			l.Errorf("views: %+v", views)
		}
		if bounded, err := l.PoolOverviews(l.Context(), "idle", 1, 1); err != nil || len(bounded) != 1 || bounded[0].Waiting != 1 {
			l.Errorf("after idle, counted up to 1: %+v, %v", bounded, err)
		}
		want := map[store.TaskState]int64{store.Pending: 2, store.Dispatched: 1, store.Succeeded: 1, store.Failed: 2}
		for pool, counts := range map[string]map[store.TaskState]int64{"p": want, "": want, "idle": {}} {
			got, err := l.TaskCounts(l.Context(), pool, 1)
			l.must(err)
			if diff := cmp.Diff(store.TaskCounts{ByState: counts}, got); diff != "" {
				l.Errorf("of %q: %s", pool, diff)
			}
		}
		l.mustGrant(ids[4], names[4], "p", 2)
		for pool, more := range map[string]bool{"p": true, "": true, "idle": false} {
			if got, err := l.TaskCounts(l.Context(), pool, 1); err != nil || got.More != more || more && got.ByState[store.Dispatched] != 1 {
				l.Errorf("of %q, of two slots held one counted: %+v, %v", pool, got, err)
			}
		}
		top, err := l.TopErrors(l.Context(), store.ResultFilter{Batch: batch.ID}, 100, 5)
		l.must(err)
		if diff := cmp.Diff([]store.ErrorCount{{Error: "no <route>", Tasks: 2}}, top); diff != "" {
			l.Error(diff)
		}
	})
}

// TestWaitingCountsDevices checks that the overview of a pool counts waiting devices and not tasks, even if all of the first tasks belong
// to one device.
func TestWaitingCountsDevices(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.putPool("p", 5)
	for range 6 {
		l.queueBatch(store.Batch{Pool: "p"}, "a")
	}
	l.queueBatch(store.Batch{Pool: "p"}, "b", "c", "d", "e", "f")
	_, ids := l.queueBatch(store.Batch{Pool: "p"}, "g", "h")
	l.mustGrant(ids[0], "g", "p", 0)
	_, err := l.CreateDevice(l.Context(), "op", "b", store.DeviceSpec{}, []byte("1"), nil)
	l.must(err)
	l.must(l.SetBlocked(l.Context(), "op", "b", true, ""))
	for most, want := range map[int]int{100: 6, 6: 6, 5: 5, 4: 4, 1: 1} {
		if n := l.countWaitingUpTo(most, "p"); n != want {
			l.Errorf("up to %d: %d devices wait, want %d", most, n, want)
		}
	}
}

func TestWebSessions(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		secret, ended, token := []byte("hash of a secret"), []byte("of another one"), []byte("hash of a token")
		l.must(l.OpenSession(l.Context(), "alice", "192.0.2.1", ended, token, -time.Second))
		l.must(l.OpenSession(l.Context(), "alice", "192.0.2.1", secret, token, time.Hour))
		if got, err := l.Session(l.Context(), secret); err != nil || string(got) != string(token) {
			l.Errorf("session: %q, %v", got, err)
		}
		if _, err := l.Session(l.Context(), ended); !errors.Is(err, store.ErrNotFound) {
			l.Errorf("a session that has ended: %v", err)
		}
		l.must(l.CloseSession(l.Context(), "alice", "192.0.2.2", secret))
		l.must(l.CloseSession(l.Context(), "alice", "192.0.2.2", secret))
		if _, err := l.Session(l.Context(), secret); !errors.Is(err, store.ErrNotFound) {
			l.Errorf("a session that was closed: %v", err)
		}
	})
}
