package store_test

import (
	"context"
	"errors"
	"iter"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

// withOnceKey returns the context and the Once of a request with this idempotency key and body.
func withOnceKey(l *ledger, owner int64, key, body string) (context.Context, *store.Once) {
	once := &store.Once{Owner: owner, Key: key, Digest: func() ([]byte, error) { return []byte(body), nil }}
	return store.WithOnce(l.Context(), once), once
}

func TestARequestSentAgainTakesEffectOnce(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 1)
		create := func(owner int64, key, body string) (store.Batch, bool, error) {
			ctx, once := withOnceKey(l, owner, key, body)
			b, err := l.CreateBatch(ctx, "op", store.Batch{Pool: "p", Name: body}, tasksFor([]string{"a", "b"}))
			return b, once.Replayed, err
		}
		first, replayed, err := create(1, "k", "x")
		l.must(err)
		if replayed || first.Total != 2 {
			l.Fatalf("first: %+v, replayed %v", first, replayed)
		}
		again, replayed, err := create(1, "k", "x")
		l.must(err)
		if diff := cmp.Diff(first, again); !replayed || diff != "" {
			l.Errorf("sent again, replayed %v: %s", replayed, diff)
		}
		if _, _, err := create(1, "k", "y"); !errors.Is(err, store.ErrKeyReused) {
			l.Errorf("another body: %v", err)
		}
		other, replayed, err := create(2, "k", "y")
		l.must(err)
		if replayed || other.ID == first.ID {
			l.Errorf("another token's key: %+v", other)
		}
		if n := l.countRows("tasks"); n != 4 {
			l.Errorf("%d tasks, want 4", n)
		}
		// After a day, the idempotency key can be used again.
		l.exec(`UPDATE answers SET answered_at = answered_at - $1 * {ms} WHERE owner = 1`, (24*time.Hour + time.Minute).Milliseconds())
		late, replayed, err := create(1, "k", "y")
		l.must(err)
		if replayed || late.ID == first.ID {
			l.Errorf("a day later: %+v", late)
		}
		if late, replayed, err = create(1, "k", "y"); err != nil || !replayed || late.Name != "y" {
			l.Errorf("the new answer is kept: %+v, %v", late, err)
		}
	})
}

func TestARefusedRequestLeavesItsKeyFree(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	for range 2 {
		ctx, _ := withOnceKey(l, 1, "k", "x")
		if _, err := l.CreateBatch(ctx, "op", store.Batch{Pool: "p"}, tasksFor(nil)); !errors.Is(err, store.ErrUnknownPool) {
			l.Fatalf("without a pool: %v", err)
		}
	}
	l.putPool("p", 1)
	ctx, once := withOnceKey(l, 1, "k", "x")
	_, err := l.CreateBatch(ctx, "op", store.Batch{Pool: "p"}, tasksFor([]string{"a"}))
	l.must(err)
	if once.Replayed {
		l.Error("a refusal was kept")
	}
}

func TestASecondRequestMeetsTheFirstOneUnderWay(t *testing.T) {
	t.Parallel()
	sendDuringFirst := func(l *ledger, other *store.Store) {
		l.putPool("p", 1)
		var secondErr error
		tasks := iter.Seq2[store.NewTask, error](func(yield func(store.NewTask, error) bool) {
			ctx, _ := withOnceKey(l, 1, "k", "x")
			_, secondErr = other.CreateBatch(ctx, "op", store.Batch{Pool: "p"}, store.NewBatchTasks{Tasks: tasksFor([]string{"a"})})
			yield(store.NewTask{Device: "a"}, nil)
		})
		ctx, _ := withOnceKey(l, 1, "k", "x")
		_, err := l.CreateBatch(ctx, "op", store.Batch{Pool: "p"}, tasks)
		l.must(err)
		if !errors.Is(secondErr, store.ErrInProgress) {
			l.Errorf("the second: %v", secondErr)
		}
		if n := l.countRows("tasks"); n != 1 {
			l.Errorf("%d tasks", n)
		}
	}
	t.Run("one process", func(t *testing.T) {
		t.Parallel()
		l := openSQLite(t)
		sendDuringFirst(l, l.Store)
	})
	t.Run("two replicas", func(t *testing.T) {
		t.Parallel()
		dsn := sharedPostgres.NewLedger(t)
		l := migrateOpened(t)(store.OpenPostgres(t.Context(), dsn, store.Options{}))
		sendDuringFirst(l, migrateOpened(t)(store.OpenPostgres(t.Context(), dsn, store.Options{})).Store)
	})
}

// TestALostAnswerIsGivenAgain checks a request with an idempotency key whose reply to COMMIT is lost. The client then sends the request
// again and must get the stored response.
func TestALostAnswerIsGivenAgain(t *testing.T) {
	t.Parallel()
	l, arm := openLosingCommits(t)
	l.putPool("p", 1)
	ctx, _ := withOnceKey(l, 1, "k", "x")
	devices := deviceNames(1000)
	arm()
	if _, err := l.CreateBatch(ctx, "op", store.Batch{Pool: "p"}, tasksFor(devices)); !errors.Is(err, store.ErrOutcomeUnknown) {
		t.Fatalf("%v, want an unknown outcome", err)
	}
	ctx, once := withOnceKey(l, 1, "k", "x")
	again, err := l.CreateBatch(ctx, "op", store.Batch{Pool: "p"}, tasksFor(devices))
	l.must(err)
	if !once.Replayed || again.ID != 1 || again.Total != 1000 || l.countRows("tasks") != 1000 || l.countRows("batches") != 1 {
		t.Errorf("replayed %v: batch %d of %d, %d tasks", once.Replayed, again.ID, again.Total, l.countRows("tasks"))
	}
}

func TestCredentialsAreMadeOnce(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	accounts := 0
	set := func(context.Context, bool) error {
		accounts++
		return nil
	}
	for i := range 2 {
		ctx, once := withOnceKey(l, 0, "device", "x")
		d, err := l.CreateDevice(ctx, "op", "a", store.DeviceSpec{Tags: map[string]string{"k": "v"}}, []byte("secret of each try"), set)
		l.must(err)
		if d.ID != "a" || d.Tags["k"] != "v" || once.Replayed != (i == 1) {
			l.Errorf("%+v, replayed %v", d, once.Replayed)
		}
		ctx, once = withOnceKey(l, 0, "token", "x")
		token, err := l.CreateToken(ctx, "op", store.Token{Name: "n", Role: "viewer"}, []byte{byte(i)})
		l.must(err)
		if token.Name != "n" || once.Replayed != (i == 1) {
			l.Errorf("%+v, replayed %v", token, once.Replayed)
		}
	}
	if n := l.countRows("tokens"); n != 2 || accounts != 1 {
		l.Errorf("%d tokens, the account set %d times", n, accounts)
	}
	if n := l.countRows("events"); n != 2 {
		l.Errorf("%d events", n)
	}
}
