package store_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/store"
)

func TestFromBatchToResult(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("ar:1", 2)
		batch, ids := l.queueBatch(store.Batch{Pool: "ar:1", Kind: "speedtest", Payload: []byte(`{"server": "st1"}`), MaxAttempts: 2}, "a", "b")
		views, err := l.DeviceViews(l.Context(), []string{"b", "nobody", "a"})
		l.must(err)
		if len(views) != 3 || len(views[0].Candidates) != 1 || views[0].Candidates[0].Task != ids[1] || len(views[1].Candidates) != 0 {
			l.Fatalf("views: %+v", views)
		}
		g := l.mustGrant(ids[0], "a", "ar:1", 1)
		if g.Slot != 1 || g.Attempt != 1 || g.Kind != "speedtest" || string(g.Payload) != `{"server": "st1"}` || g.Batch != batch.ID ||
			g.Remaining < time.Hour-time.Minute || g.Remaining > time.Hour || g.LeaseLength != time.Hour {
			l.Fatalf("grant: %+v", g)
		}
		views, err = l.DeviceViews(l.Context(), []string{"a"})
		l.must(err)
		if views[0].Grant == nil || views[0].Grant.Token != g.Token || len(views[0].Candidates) != 0 {
			l.Fatalf("view of a holder: %+v", views[0])
		}
		l.wantTask(ids[0], store.Dispatched)
		outcome := l.recordResult(g, store.BySuccess, `{"down":  94.10}`)
		if outcome.Kind != store.ResultRecorded || outcome.State != store.Succeeded || outcome.Ended == nil || outcome.Ended.LeaseID != g.LeaseID {
			l.Fatalf("outcome: %+v", outcome)
		}
		if task := l.wantTask(ids[0], store.Succeeded); string(task.Output) != `{"down":  94.10}` || task.FinishedAt == nil {
			l.Fatalf("task: %+v", task)
		}
		if outcome := l.recordResult(g, store.BySuccess, `{}`); outcome.Kind != store.ResultDuplicate {
			l.Fatalf("the same result again: %+v", outcome)
		}
	})
}

func TestSettingsThatBreakPromisesAreRefused(t *testing.T) {
	t.Parallel()
	dsn := sharedPostgres.NewLedger(t)
	for _, l := range []*ledger{openSQLite(t), migrateOpened(t)(store.OpenPostgres(t.Context(), dsn, longTimeouts()))} {
		if err := l.CheckSettings(l.Context()); err != nil {
			l.Fatalf("a durable database: %v", err)
		}
	}
	for setting, value := range map[string]string{"synchronous_commit": "off", "session_replication_role": "replica"} {
		s, err := store.OpenPostgres(t.Context(), dsn+"&"+setting+"="+value, store.Options{})
		must.Succeed(t, err)
		t.Cleanup(func() { _ = s.Close() })
		if err := s.CheckSettings(t.Context()); err == nil || !strings.Contains(err.Error(), setting) {
			t.Errorf("%s = %s: %v", setting, value, err)
		}
	}
}

func TestPostgresTimeoutsAreSet(t *testing.T) {
	t.Parallel()
	dsn := sharedPostgres.NewLedger(t)
	s, err := store.OpenPostgres(t.Context(), dsn+"&lock_timeout=1234", store.Options{StatementTimeout: 7 * time.Second})
	must.Succeed(t, err)
	defer s.Close()
	for setting, want := range map[string]string{
		"statement_timeout": "7s", "lock_timeout": "1234ms", "idle_in_transaction_session_timeout": "10s", "application_name": "dispatcher",
	} {
		var got string
		if err := s.DB().QueryRowContext(t.Context(), "SHOW "+setting).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", setting, got, err, want)
		}
	}
}

func TestOpeningWhatIsNotThereFails(t *testing.T) {
	t.Parallel()
	if _, err := store.OpenPostgres(t.Context(), "postgres://"+servers.FreeAddr(t)+"/none?sslmode=disable", store.Options{}); err == nil {
		t.Error("no server, and no error")
	}
	if _, err := store.OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "no", "such", "folder")); err == nil {
		t.Error("no folder, and no error")
	}
}

// TestSQLiteKeepsWhatItCommitted checks that the embedded SQLite ledger still has its data after a restart.
func TestSQLiteKeepsWhatItCommitted(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := migrateOpened(t)(store.OpenSQLite(t.Context(), path))
	l.putPool("p", 1)
	_, ids := l.queueBatch(store.Batch{Pool: "p"}, "a")
	g := l.mustGrant(ids[0], "a", "p", 0)
	l.must(l.Close())
	again := migrateOpened(t)(store.OpenSQLite(t.Context(), path))
	if o := again.recordResult(g, store.BySuccess, ""); o.Kind != store.ResultRecorded {
		t.Fatalf("outcome %+v", o)
	}
	var mode, sync string
	again.must(again.DB().QueryRowContext(t.Context(), "PRAGMA journal_mode").Scan(&mode))
	again.must(again.DB().QueryRowContext(t.Context(), "PRAGMA synchronous").Scan(&sync))
	if mode != "wal" || sync != "2" {
		t.Fatalf("journal_mode %s, synchronous %s; want wal and 2", mode, sync)
	}
}

// openLosingCommits returns a ledger behind a proxy. After the test has called arm, the proxy drops the reply to
// the next COMMIT.
func openLosingCommits(t *testing.T) (l *ledger, arm func()) {
	t.Helper()
	var armed atomic.Bool
	proxy := servers.NewProxy(t, sharedPostgres.Server(t).Addr())
	proxy.OnRequest(func(b []byte) {
		if bytes.Contains(b, []byte("COMMIT")) && armed.CompareAndSwap(true, false) {
			proxy.DropReplies(1)
		}
	})
	dsn := strings.Replace(sharedPostgres.NewLedger(t), sharedPostgres.Server(t).Addr(), proxy.Addr, 1)
	return migrateOpened(t)(store.OpenPostgres(t.Context(), dsn, longTimeouts())), func() { armed.Store(true) }
}

// TestALostCommitIsSaidToBeUnknown checks a claim and a result whose reply to COMMIT is lost. Both must have an unknown outcome. A second
// result of the same call was not recorded yet. It must have an unknown outcome, too, so that it is not acknowledged.
func TestALostCommitIsSaidToBeUnknown(t *testing.T) {
	t.Parallel()
	l, arm := openLosingCommits(t)
	l.putPool("p", 2)
	_, ids := l.queueBatch(store.Batch{Pool: "p"}, "a", "b")
	other := l.mustGrant(ids[1], "b", "p", 1)
	arm()
	if _, err := l.Claim(l.Context(), []store.Claim{l.newClaim(ids[0], "a", "p", 0)}, true); !errors.Is(err, store.ErrOutcomeUnknown) {
		t.Fatalf("claim: %v, want an unknown outcome", err)
	}
	// Only the reply was lost: the grant is committed.
	_, grant, _, err := l.Task(l.Context(), ids[0])
	l.must(err)
	if grant == nil || grant.Token == 0 {
		t.Fatalf("grant %+v", grant)
	}
	arm()
	results := []store.Result{
		{Device: "a", Task: grant.Task, Token: grant.Token, Cause: store.BySuccess},
		{Device: "b", Task: other.Task, Token: other.Token, Cause: store.BySuccess, Dropped: true}, // not part of the lost COMMIT
	}
	for i, o := range l.RecordResults(l.Context(), results, settleEnding) {
		if !errors.Is(o.Err, store.ErrOutcomeUnknown) {
			t.Fatalf("result %d: outcome %+v, want an unknown one", i, o)
		}
	}
	again := l.RecordResults(l.Context(), results, settleEnding)
	if again[0].Kind != store.ResultDuplicate || again[1].Kind != store.ResultRecorded {
		t.Fatalf("sent again: %+v, want a duplicate and one that is recorded", again)
	}
}

func TestWhatWasNotSentToCommitIsNotUnknown(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		_, ids := l.queueBatch(store.Batch{Pool: "p"}, "a")
		g := l.mustGrant(ids[0], "a", "p", 0)
		ctx, cancel := context.WithCancel(l.Context())
		r := store.Result{Device: "a", Task: g.Task, Token: g.Token, Cause: store.BySuccess}
		o := l.RecordResults(ctx, []store.Result{r}, func(e store.EndedGrantFacts) store.NextTaskState {
			cancel()
			return settleEnding(e)
		})[0]
		if o.Err == nil || errors.Is(o.Err, store.ErrOutcomeUnknown) {
			l.Fatalf("outcome %+v, want an error that is certain", o)
		}
		l.wantTask(g.Task, store.Dispatched)
	})
}

// TestTheLedgerOutlivesItsServer checks a database server that dies and restarts. Everything that was acknowledged before must still be
// stored, and new connections must prepare their statements again.
func TestTheLedgerOutlivesItsServer(t *testing.T) {
	t.Parallel()
	pg := servers.StartPostgres(t)
	options := longTimeouts()
	options.MaxOpenConns = 2
	l := migrateOpened(t)(store.OpenPostgres(t.Context(), pg.NewDatabase(t), options))
	l.putPool("p", 1)
	devices := deviceNames(30)
	_, ids := l.queueBatch(store.Batch{Pool: "p"}, devices...)
	for i, die := range []func(){pg.Kill, pg.StopImmediately} {
		l.runTaskPerDevice(ids[10*i:10*i+10], devices[10*i:10*i+10])
		die()
		if _, err := l.DeviceViews(l.Context(), devices[:1]); err == nil {
			t.Fatal("a view without a server")
		}
		pg.Start()
		l.wantTask(ids[10*i+9], store.Succeeded)
	}
	l.runTaskPerDevice(ids[20:], devices[20:])
}
