package store_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/store"
)

// stageAccounts stages the broker accounts of new devices, as an import does before it creates them. It returns the stage and the ids of
// the staged devices.
func (l *ledger) stageAccounts(list []store.NewDevice, existing store.OnExisting, keepFor time.Duration) (store.Stage, []string) {
	l.Helper()
	stage := store.NewStage(nil)
	staged, err := l.StageAccounts(l.Context(), stage, list, existing, keepFor)
	l.must(err)
	var ids []string
	for _, d := range staged {
		ids = append(ids, list[d.Entry].ID)
	}
	return stage, ids
}

// applyDeletions applies the recorded account changes, which must all be deletions. It returns the ids of the
// devices.
func (l *ledger) applyDeletions() (ids []string) {
	l.Helper()
	for _, c := range l.applyChanges() {
		if c.Wanted != store.AccountDeleted {
			l.Errorf("%+v", c)
		}
		ids = append(ids, c.Device)
	}
	slices.Sort(ids)
	return ids
}

func TestStagedAccountsGoUnlessTheyWereKept(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.RecordAccountChanges()
		_, err := l.EnsureDevices(l.Context(), "d-2")
		l.must(err)
		list := newDevices(0, 4, "a")
		if _, ids := l.stageAccounts(list, store.RefuseExisting, time.Hour); len(ids) != 0 {
			l.Errorf("%v are to be made for an import that will be refused", ids)
		}
		stage, ids := l.stageAccounts(list, store.SkipExisting, time.Hour)
		if want := []string{"d-0", "d-1", "d-3"}; !slices.Equal(ids, want) {
			l.Fatalf("accounts of %v are to be made, want %v", ids, want)
		}
		l.must(l.SetStagedAccounts(l.Context(), stage, ids, time.Hour, func(context.Context) error { return nil }))
		if gone := l.applyDeletions(); len(gone) != 0 {
			l.Errorf("%v go while they are made", gone)
		}
		given, err := l.ImportDevices(l.Context(), "op", list, store.SkipExisting, 0, stage)
		if err != nil || !slices.Equal(given, []bool{true, true, false, true}) {
			l.Fatalf("given %v, %v", given, err)
		}
		l.must(l.DropStage(l.Context(), stage, ids))
		if n := l.countRows("account_changes"); n != 0 {
			l.Errorf("%d notes are left of an import that succeeded", n)
		}

		failed, ids := l.stageAccounts(newDevices(4, 6, "a"), store.RefuseExisting, time.Hour)
		l.must(l.DropStage(l.Context(), failed, ids))
		l.must(l.SetBlocked(l.Context(), "op", "d-0", true, ""))
		_, died := l.stageAccounts(newDevices(6, 8, "a"), store.RefuseExisting, 0)
		// The change that an operator made must come before the deletions that failed imports left behind.
		if changes := l.applyChanges(); len(changes) != 5 || changes[0] != (store.AccountChange{Device: "d-0", Wanted: store.AccountDisabled}) {
			l.Errorf("%v, want d-0 disabled, and then %v and %v deleted", changes, ids, died)
		}
	})
}

func TestTooManyAccountsAreRefused(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		list := newDevices(0, store.MaxStagedAccounts+2, "a")
		_, err := l.ImportDevices(l.Context(), "op", list[:1], store.RefuseExisting, 0, 0)
		l.must(err)
		var bad *store.EntryError
		_, err = l.StageAccounts(l.Context(), store.NewStage(nil), list, store.SkipExisting, time.Hour)
		if !errors.As(err, &bad) || !errors.Is(err, store.ErrTooManyAccounts) || bad.Entry != store.MaxStagedAccounts+1 {
			l.Errorf("%v, %+v", err, bad)
		}
		if _, ids := l.stageAccounts(list[:store.MaxStagedAccounts+1], store.SkipExisting, time.Hour); len(ids) != store.MaxStagedAccounts {
			l.Errorf("%d accounts", len(ids))
		}
	})
}

// TestABlockedDeviceIsStagedDisabled checks a device that was deleted while it was blocked. When it is imported
// again, it is blocked and its account is disabled.
func TestABlockedDeviceIsStagedDisabled(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	_, err := l.EnsureDevices(l.Context(), "d-0")
	l.must(err)
	l.must(l.SetBlocked(l.Context(), "op", "d-0", true, ""))
	_, err = l.DeleteDevice(l.Context(), "op", "d-0", false)
	l.must(err)
	l.applyChanges()
	staged, err := l.StageAccounts(l.Context(), store.NewStage(nil), newDevices(0, 2, "a"), store.RefuseExisting, time.Hour)
	l.must(err)
	if want := []store.StagedDevice{{Entry: 0}, {Entry: 1, Enabled: true}}; !slices.Equal(staged, want) {
		l.Errorf("%v, want %v", staged, want)
	}
}

// TestAStageIsOvertaken checks an import that has staged the account of a device when another request takes over this account. Then the
// import must not create the account, and the end of the import must not delete it.
func TestAStageIsOvertaken(t *testing.T) {
	t.Parallel()
	nothing := func(context.Context, bool) error { return nil }
	for name, overtake := range map[string]func(*ledger) error{
		"create": func(l *ledger) error {
			_, err := l.CreateDevice(l.Context(), "op", "d-1", store.DeviceSpec{}, []byte("1"), nothing)
			return err
		},
		"enrol": func(l *ledger) error { return l.enroll("d-1", []byte("1"), nothing) },
		"another import, later": func(l *ledger) error {
			l.exec(`UPDATE account_changes SET changed_at = {now}`)
			l.stageAccounts(newDevices(1, 2, "b"), store.RefuseExisting, time.Hour)
			return nil
		},
		"the pass, too late": func(l *ledger) error {
			l.exec(`UPDATE account_changes SET changed_at = {now}`)
			l.applyChanges()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := openPostgres(t)
			l.RecordAccountChanges()
			list := newDevices(0, 2, "a")
			stage, ids := l.stageAccounts(list, store.RefuseExisting, time.Hour)
			l.must(overtake(l))
			err := l.SetStagedAccounts(l.Context(), stage, ids, time.Hour, func(context.Context) error {
				l.Error("an account is made that is another's")
				return nil
			})
			if !errors.Is(err, store.ErrAccountConflict) {
				l.Errorf("%v", err)
			}
			if _, err := l.ImportDevices(l.Context(), "op", list, store.RefuseExisting, 0, stage); !errors.Is(err, store.ErrAccountConflict) && !errors.Is(err, store.ErrExists) {
				l.Errorf("imported: %v", err)
			}
			l.must(l.DropStage(l.Context(), stage, ids))
			if gone := l.applyDeletions(); slices.Contains(gone, "d-1") {
				l.Error("the account goes that is another's")
			}
		})
	}
}

// TestABlockOvertakesAStage checks an import that has staged the account of a device as enabled. Then the device is registered, blocked and
// deleted. The stage must become invalid, because the account must now be disabled.
func TestABlockOvertakesAStage(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.RecordAccountChanges()
	stage, ids := l.stageAccounts(newDevices(0, 1, "a"), store.RefuseExisting, time.Hour)
	_, err := l.EnsureDevices(l.Context(), "d-0")
	l.must(err)
	l.must(l.SetBlocked(l.Context(), "op", "d-0", true, ""))
	_, err = l.DeleteDevice(l.Context(), "op", "d-0", false)
	l.must(err)
	if err := l.SetStagedAccounts(l.Context(), stage, ids, time.Hour, func(context.Context) error { return nil }); !errors.Is(err, store.ErrAccountConflict) {
		l.Errorf("%v", err)
	}
}

// TestAnImportUnderWayKeepsOthersAway checks an import that has staged its accounts. Until it completes, other imports of the same devices
// must be refused.
func TestAnImportUnderWayKeepsOthersAway(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		ctx, once := withOnceKey(l, 1, "k", "x")
		first := store.NewStage(once)
		_, err := l.StageAccounts(ctx, first, newDevices(0, 2, "a"), store.RefuseExisting, time.Hour)
		l.must(err)
		if _, err := l.StageAccounts(ctx, store.NewStage(once), newDevices(0, 2, "a"), store.RefuseExisting, time.Hour); !errors.Is(err, store.ErrInProgress) {
			l.Errorf("sent again with its key: %v", err)
		}
		_, other := withOnceKey(l, 2, "k", "x")
		for _, once := range []*store.Once{nil, other} {
			_, err := l.StageAccounts(l.Context(), store.NewStage(once), newDevices(1, 3, "b"), store.SkipExisting, time.Hour)
			if !errors.Is(err, store.ErrAccountConflict) {
				l.Errorf("another one with one of its devices: %v", err)
			}
		}
		if n := l.countRows("account_changes"); n != 2 {
			l.Errorf("%d notes, want those of the first", n)
		}
		ids := []string{"d-0", "d-1"}
		l.must(l.SetStagedAccounts(l.Context(), first, ids, time.Hour, func(context.Context) error { return nil }))
		_, err = l.ImportDevices(ctx, "op", newDevices(0, 2, "a"), store.RefuseExisting, 0, first)
		l.must(err)
	})
}

// TestAStageEndsUnlessItsAccountsAreMade checks the time limit of an import. Each call of SetStagedAccounts extends the limit. After the
// limit, the import must not create any account.
func TestAStageEndsUnlessItsAccountsAreMade(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		made := 0
		set := func(context.Context) error { made++; return nil }
		stage, ids := l.stageAccounts(newDevices(0, 3, "a"), store.RefuseExisting, time.Minute)
		l.must(l.SetStagedAccounts(l.Context(), stage, ids, time.Hour, set))
		l.exec(`UPDATE account_changes SET changed_at = changed_at - $1 * {ms}`, (2 * time.Minute).Milliseconds())
		l.must(l.SetStagedAccounts(l.Context(), stage, ids, time.Hour, set))
		l.exec(`UPDATE account_changes SET changed_at = {now} WHERE device = 'd-2'`)
		if err := l.SetStagedAccounts(l.Context(), stage, ids, time.Hour, set); !errors.Is(err, store.ErrAccountConflict) || made != 2 {
			l.Errorf("%v, %d parts were made, want 2", err, made)
		}
	})
}

// TestAnImportIsCheckedBeforeItsAccountsAreMade checks an import that the ledger will refuse: it is refused before
// its accounts are created at the broker.
func TestAnImportIsCheckedBeforeItsAccountsAreMade(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		stage := func(ctx context.Context, list []store.NewDevice, existing store.OnExisting) ([]store.StagedDevice, error) {
			return l.StageAccounts(ctx, store.NewStage(store.OnceFrom(ctx)), list, existing, time.Hour)
		}
		ctx, _ := withOnceKey(l, 1, "k", "x")
		_, err := l.ImportDevices(ctx, "op", newDevices(0, 2, "a"), store.RefuseExisting, 0, 0)
		l.must(err)
		var bad *store.EntryError
		unknown := newDevices(2, 5, "a")
		unknown[1].Profile = "unknown"
		if _, err := stage(l.Context(), unknown, store.RefuseExisting); !errors.Is(err, store.ErrUnknownProfile) || !errors.As(err, &bad) || bad.Entry != 1 {
			l.Errorf("an unknown profile: %v, %+v", err, bad)
		}
		if staged, err := stage(ctx, newDevices(0, 5, "a"), store.SkipExisting); err != nil || len(staged) != 0 {
			l.Errorf("a replay makes %v, %v", staged, err)
		}
		reused, _ := withOnceKey(l, 1, "k", "y")
		if _, err := stage(reused, newDevices(2, 5, "a"), store.RefuseExisting); !errors.Is(err, store.ErrKeyReused) {
			l.Errorf("another request's key: %v", err)
		}
		errTags := errors.New("too many tags")
		list := newDevices(1, 5, "a")
		list[0].Update = func(store.NewDevice, *store.DeviceSpec) error { return errTags }
		if _, err := stage(l.Context(), list, store.UpdateExisting); !errors.Is(err, errTags) || !errors.As(err, &bad) || bad.Entry != 0 {
			l.Errorf("tags that do not fit: %v, %+v", err, bad)
		}
		if n := l.countRows("account_changes"); n != 0 {
			l.Errorf("%d accounts are noted", n)
		}
	})
}

// TestAnImportWaitsForADeletedDevice checks an import of a device whose old account is not deleted yet. The import must be refused until
// the account is deleted, so that it does not delay the deletion.
func TestAnImportWaitsForADeletedDevice(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.RecordAccountChanges()
		list := newDevices(0, 2, "a")
		_, err := l.EnsureDevices(l.Context(), "d-1")
		l.must(err)
		_, err = l.DeleteDevice(l.Context(), "op", "d-1", false)
		l.must(err)
		if _, err := l.StageAccounts(l.Context(), store.NewStage(nil), list, store.RefuseExisting, time.Hour); !errors.Is(err, store.ErrAccountConflict) {
			l.Errorf("staged: %v", err)
		}
		if gone := l.applyDeletions(); !slices.Equal(gone, []string{"d-1"}) {
			l.Errorf("the accounts of %v go, want d-1's", gone)
		}
		if _, ids := l.stageAccounts(list, store.RefuseExisting, time.Hour); len(ids) != 2 {
			l.Errorf("%v are staged then", ids)
		}
	})
}

// TestAnImportWaitsToKeepItsAccounts checks an import whose accounts were already created at the broker. To register its devices, the
// import must be able to wait for a lock for longer than the lock timeout.
func TestAnImportWaitsToKeepItsAccounts(t *testing.T) {
	t.Parallel()
	options := longTimeouts()
	options.LockTimeout = 50 * time.Millisecond
	l := migrateOpened(t)(store.OpenPostgres(t.Context(), sharedPostgres.NewLedger(t), options))
	list := newDevices(0, 2, "a")
	stage, ids := l.stageAccounts(list, store.RefuseExisting, time.Hour)
	imported := make(chan error, 1)
	l.must(l.SetStagedAccounts(l.Context(), stage, ids, time.Hour, func(context.Context) error {
		go func() {
			_, err := l.ImportDevices(l.Context(), "op", list, store.RefuseExisting, 0, stage)
			imported <- err
		}()
		l.awaitCondition(func() bool {
			return len(imported) > 0 || l.countRows("pg_stat_activity WHERE wait_event_type = 'Lock' AND clock_timestamp() - query_start > interval '200 ms'") > 0
		})
		return nil
	}))
	l.must(<-imported)
}

// TestAccountsFollowAnUnknownCommit checks an import whose reply to COMMIT is lost. If the import was committed, its accounts at the broker
// must stay. Otherwise they must be deleted.
func TestAccountsFollowAnUnknownCommit(t *testing.T) {
	t.Parallel()
	for _, committed := range []bool{true, false} {
		t.Run(fmt.Sprint(committed), func(t *testing.T) {
			t.Parallel()
			var armed atomic.Bool
			proxy := servers.NewProxy(t, sharedPostgres.Server(t).Addr())
			proxy.OnRequest(func(b []byte) {
				if bytes.Contains(b, []byte("COMMIT")) && armed.CompareAndSwap(true, false) {
					if committed {
						proxy.DropReplies(1)
					} else {
						proxy.Cut()
					}
				}
			})
			dsn := strings.Replace(sharedPostgres.NewLedger(t), sharedPostgres.Server(t).Addr(), proxy.Addr, 1)
			l := migrateOpened(t)(store.OpenPostgres(t.Context(), dsn, longTimeouts()))
			l.RecordAccountChanges()
			list := newDevices(0, 3, "a")
			stage, ids := l.stageAccounts(list, store.RefuseExisting, time.Hour)
			l.must(l.SetStagedAccounts(l.Context(), stage, ids, time.Hour, func(context.Context) error { return nil }))
			armed.Store(true)
			if _, err := l.ImportDevices(l.Context(), "op", list, store.RefuseExisting, 0, stage); !errors.Is(err, store.ErrOutcomeUnknown) {
				l.Fatalf("imported: %v", err)
			}
			proxy.EndCut()
			l.awaitCondition(func() bool { return l.DropStage(l.Context(), stage, ids) == nil })
			want, registered := []string(nil), 3
			if !committed {
				want, registered = ids, 0
			}
			if gone := l.applyDeletions(); !slices.Equal(gone, want) || l.countDevices() != registered {
				l.Errorf("the accounts of %v go, want %v; %d devices", gone, want, l.countDevices())
			}
		})
	}
}

// brokerAccounts is a fake broker: it stores the password of each device that has an account.
type brokerAccounts struct {
	mu        sync.Mutex
	passwords map[string]string
}

func (p *brokerAccounts) setPasswords(ids []string, password string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		p.passwords[id] = password + id
	}
}

func (p *brokerAccounts) applyChange(_ context.Context, c store.AccountChange) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Wanted == store.AccountDeleted {
		delete(p.passwords, c.Device)
	}
	return nil
}

// TestAccountsAgreeWithTheLedgerHoweverManyMakeThem lets replicas import, create and delete the same devices concurrently. Some replicas
// die during an operation, and some running replicas count as dead. At the end, each registered device must have an account with its token,
// and no other id may have an account.
func TestAccountsAgreeWithTheLedgerHoweverManyMakeThem(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.RecordAccountChanges()
	broker := &brokerAccounts{passwords: map[string]string{}}
	var wait sync.WaitGroup
	for worker := range 6 {
		random := rand.New(rand.NewPCG(1, uint64(worker)))
		wait.Go(func() {
			for round := range 25 {
				l.runAccountOperation(broker, random, fmt.Sprint(worker, ".", round, " "))
			}
		})
	}
	wait.Wait()
	l.exec(`UPDATE account_changes SET changed_at = {now} - {ms}`)
	_, err := l.ApplyAccountChanges(l.Context(), 100, time.Minute, broker.applyChange)
	l.must(err)
	for _, d := range newDevices(0, 4, "") {
		_, err := l.Device(l.Context(), d.ID)
		password, has := broker.passwords[d.ID]
		if registered := err == nil; registered != has || has && !l.ownsToken(d.ID, strings.TrimSuffix(password, d.ID)) {
			l.Errorf("%s is registered: %t; its account: %t, with its token: %t", d.ID, registered, has, l.ownsToken(d.ID, strings.TrimSuffix(password, d.ID)))
		}
	}
}

// runAccountOperation runs one random operation that creates or deletes accounts.
func (l *ledger) runAccountOperation(broker *brokerAccounts, random *rand.Rand, token string) {
	ctx, list := l.Context(), newDevices(0, 4, token)
	id := list[random.IntN(len(list))].ID
	hash := sha256.Sum256([]byte(token + id))
	set := func(context.Context, bool) error { broker.setPasswords([]string{id}, token); return nil }
	var err error
	switch random.IntN(5) {
	case 0:
		_, err = l.CreateDevice(ctx, "op", id, store.DeviceSpec{}, hash[:], set)
	case 1:
		_, err = l.DeleteDevice(ctx, "op", id, false)
	case 2:
		_, err = l.ApplyAccountChanges(ctx, 2, time.Minute, broker.applyChange)
	default:
		existing := []store.OnExisting{store.RefuseExisting, store.SkipExisting}[random.IntN(2)]
		stage := store.NewStage(nil)
		kept := []time.Duration{10 * time.Millisecond, time.Hour, time.Hour}[random.IntN(3)]
		var staged []store.StagedDevice
		staged, err = l.StageAccounts(ctx, stage, list, existing, kept)
		var ids []string
		for _, d := range staged {
			ids = append(ids, list[d.Entry].ID)
		}
		if err == nil && len(ids) > 0 {
			err = l.SetStagedAccounts(ctx, stage, ids, kept, func(context.Context) error { broker.setPasswords(ids, token); return nil })
		}
		if random.IntN(4) == 0 {
			return // The replica died.
		}
		if err == nil {
			_, err = l.ImportDevices(ctx, "op", list, existing, 0, stage)
		}
		err = errors.Join(err, l.DropStage(ctx, stage, ids))
	}
	if err != nil && !errors.Is(err, store.ErrExists) && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrAccountConflict) {
		l.Error(err)
	}
}
