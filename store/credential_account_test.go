package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

var errBroker = errors.New("the broker is down")

// rotateToken creates a new token for the device "a". It returns the time at which the older tokens of the device expire.
func (l *ledger) rotateToken(hash string, overlap time.Duration) time.Time {
	l.Helper()
	until, err := l.RotateDeviceToken(l.Context(), "op", "a", []byte(hash), overlap, nil)
	l.must(err)
	return until
}

func (l *ledger) isTokenValid(hash string) bool {
	l.Helper()
	_, err := l.TokenByHash(l.Context(), []byte(hash))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		l.Fatal(err)
	}
	return err == nil
}

func (l *ledger) eventKinds(device string) (kinds []string) {
	l.Helper()
	events, err := l.Events(l.Context(), store.EventFilter{Device: device})
	l.must(err)
	for _, e := range events {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

// applyChanges applies all recorded changes of broker accounts, as the background pass does, and returns these changes.
func (l *ledger) applyChanges() (applied []store.AccountChange) {
	l.Helper()
	_, err := l.ApplyAccountChanges(l.Context(), 100, time.Minute, func(_ context.Context, c store.AccountChange) error {
		applied = append(applied, c)
		return nil
	})
	l.must(err)
	return applied
}

func TestRotationOverlaps(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	_, err := l.CreateDevice(l.Context(), "op", "a", store.DeviceSpec{}, []byte("1"), nil)
	l.must(err)
	_, err = l.CreateDevice(l.Context(), "op", "b", store.DeviceSpec{}, []byte("other"), nil)
	l.must(err)
	now, err := l.Clock(l.Context())
	l.must(err)
	until := l.rotateToken("2", time.Hour)
	if until.Before(now.Add(time.Hour)) || until.After(now.Add(time.Hour+time.Minute)) {
		l.Errorf("older until %s, an hour from %s", until, now)
	}
	first, err := l.TokenByHash(l.Context(), []byte("1"))
	l.must(err)
	if first.ExpiresAt == nil || !first.ExpiresAt.Equal(until.Truncate(time.Millisecond)) || !l.isTokenValid("2") {
		l.Errorf("the older token %+v, until %s", first, until)
	}
	l.rotateToken("3", 2*time.Hour) // The longer overlap of this rotation does not extend the validity of the older tokens.
	if first, err := l.TokenByHash(l.Context(), []byte("1")); err != nil || first.ExpiresAt.After(until) {
		l.Errorf("the oldest token %+v, %v", first, err)
	}
	l.rotateToken("4", 0)
	for _, hash := range []string{"1", "2", "3"} {
		if l.isTokenValid(hash) {
			l.Errorf("token %s goes on without an overlap", hash)
		}
	}
	l.rotateToken("5", time.Hour)
	if n := l.countRows("tokens WHERE device = 'a'"); n != 2 {
		l.Errorf("%d tokens of a, want the last two: those that ended are gone", n)
	}
	if !l.isTokenValid("4") || !l.isTokenValid("5") || !l.isTokenValid("other") {
		l.Error("a valid token, or another device's, ended")
	}
	if diff := cmp.Diff([]string{"device.created", "device.token_added", "device.token_added", "device.token_added", "device.token_added"}, l.eventKinds("a")); diff != "" {
		l.Error(diff)
	}
}

func TestDeviceWithoutAValidTokenIsRevoked(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	revoked := func() bool {
		d, err := l.Device(l.Context(), "a")
		l.must(err)
		views, err := l.DeviceViews(l.Context(), []string{"a"})
		l.must(err)
		if d.Revoked() != views[0].Device.Revoked() {
			l.Fatalf("device %+v, in its view %+v", d, views[0].Device)
		}
		return d.Revoked()
	}
	_, err := l.EnsureDevices(l.Context(), "a")
	l.must(err)
	if revoked() {
		l.Error("a device that never had a token")
	}
	l.rotateToken("1", 0)
	l.must(l.MarkOwnTokens(l.Context(), "a"))
	if revoked() {
		l.Error("a device with a token")
	}
	l.exec(`UPDATE tokens SET revoked_at = {now} WHERE device = 'a'`)
	if !revoked() {
		l.Error("its only token was revoked")
	}
	l.rotateToken("2", 0)
	if revoked() {
		l.Error("it has a new token")
	}
	l.exec(`UPDATE tokens SET expires_at = {now} WHERE device = 'a'`)
	if !revoked() {
		l.Error("its only token expired")
	}
}

func TestDeleteDevice(t *testing.T) {
	t.Parallel()
	runOnEachDialect(t, func(l *ledger) {
		l.putPool("p", 2)
		_, ids := l.queueBatch(store.Batch{Pool: "p"}, "a", "a", "a", "b")
		if _, err := l.DeleteDevice(l.Context(), "op", "a", true); !errors.Is(err, store.ErrNotFound) {
			l.Fatalf("not registered: %v", err)
		}
		_, err := l.CreateDevice(l.Context(), "op", "a", store.DeviceSpec{}, []byte("1"), nil)
		l.must(err)
		running := l.mustGrant(ids[0], "a", "p", 0)
		if _, err := l.DeleteDevice(l.Context(), "op", "a", false); !errors.Is(err, store.ErrOpenTasks) {
			l.Fatalf("with open tasks: %v", err)
		}
		if !l.isTokenValid("1") {
			l.Fatal("the refused deletion changed something")
		}
		removed, err := l.DeleteDevice(l.Context(), "op", "a", true)
		l.must(err)
		if removed != (store.DeviceRemoval{Deleted: 1, Cancelled: 2, Stopping: 1}) {
			l.Errorf("%+v, want 2 cancelled and 1 stopping", removed)
		}
		views, err := l.DeviceViews(l.Context(), []string{"a", "never"})
		l.must(err)
		if v := views[0]; v.Device != nil || !v.Deleted || v.Grant == nil || v.Grant.CancelWhy != "cancelled" || len(v.Candidates) != 0 {
			l.Errorf("view %+v", v)
		}
		if views[1].Deleted {
			l.Error("an unknown device counts as deleted")
		}
		l.wantTask(ids[0], store.Dispatched)
		l.wantTask(ids[1], store.Cancelled)
		l.wantTask(ids[3], store.Pending)
		if l.isTokenValid("1") {
			l.Error("its token goes on")
		}
		l.reapAll()
		l.wantTask(ids[0], store.Cancelled)
		l.recordResult(running, store.BySuccess, "")
		_, err = l.EnsureDevices(l.Context(), "a")
		l.must(err)
		if views, err = l.DeviceViews(l.Context(), []string{"a"}); err != nil || views[0].Device == nil || views[0].Deleted {
			l.Errorf("registered again: %+v, %v", views[0], err)
		}
		removed, err = l.DeleteDevice(l.Context(), "op", "a", false)
		if err != nil || removed != (store.DeviceRemoval{Deleted: 1}) {
			l.Errorf("without open tasks: %+v, %v", removed, err)
		}
		want := []string{"device.created", "task.granted", "task.cancel_asked", "task.cancelled", "task.cancelled", "device.deleted"}
		got := slices.DeleteFunc(l.eventKinds("a"), func(kind string) bool { return kind == "slot.reaped" })
		if diff := cmp.Diff(want, got[:len(want)]); diff != "" {
			l.Error(diff)
		}
	})
}

func TestAccountIsSetWithTheDeviceOrNotAtAll(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.RecordAccountChanges()
	fails := func(context.Context, bool) error { return errBroker }
	if _, err := l.CreateDevice(l.Context(), "op", "a", store.DeviceSpec{}, []byte("1"), fails); !errors.Is(err, errBroker) {
		l.Fatalf("created: %v", err)
	}
	if l.countRows("devices")+l.countRows("tokens")+l.countRows("events") != 0 {
		l.Fatal("something is left behind")
	}
	if err := l.enroll("enrolling", []byte("1"), fails); !errors.Is(err, errBroker) {
		l.Fatalf("enrolled: %v", err)
	}
	if l.countRows("tokens")+l.countEvents("device.enrolled") != 0 {
		l.Fatal("a token is left behind")
	}
	var enabled []bool
	works := func(_ context.Context, on bool) error {
		enabled = append(enabled, on)
		return nil
	}
	_, err := l.CreateDevice(l.Context(), "op", "a", store.DeviceSpec{}, []byte("1"), works)
	l.must(err)
	l.must(l.SetBlocked(l.Context(), "op", "a", true, ""))
	if _, err := l.RotateDeviceToken(l.Context(), "op", "a", []byte("2"), 0, fails); !errors.Is(err, errBroker) {
		l.Fatalf("rotated: %v", err)
	}
	if !l.isTokenValid("1") || l.isTokenValid("2") {
		l.Fatal("the rotation that failed changed something")
	}
	_, err = l.RotateDeviceToken(l.Context(), "op", "a", []byte("2"), 0, works)
	l.must(err)
	if !slices.Equal(enabled, []bool{true, false}) {
		l.Errorf("accounts enabled: %v, want the new one's, not the blocked one's", enabled)
	}
	if left := l.applyChanges(); len(left) != 0 {
		l.Errorf("%v noted, though the account was set with that state", left)
	}
}

func TestAccountChangesAreNotedAndAppliedOnce(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	for _, id := range []string{"a", "b", "c", "d"} {
		_, err := l.EnsureDevices(l.Context(), id)
		l.must(err)
	}
	l.must(l.SetBlocked(l.Context(), "op", "a", true, ""))
	if got := l.applyChanges(); len(got) != 0 {
		l.Fatalf("%v noted, though there are no accounts", got)
	}
	l.RecordAccountChanges()
	l.must(l.SetBlocked(l.Context(), "op", "a", true, ""))
	l.must(l.SetBlocked(l.Context(), "op", "b", true, ""))
	l.must(l.SetBlocked(l.Context(), "op", "b", false, ""))
	_, err := l.DeleteDevice(l.Context(), "op", "c", false)
	l.must(err)
	l.exec(`UPDATE account_changes SET changed_at = changed_at - 1000 * {ms}`) // A change that is recorded again becomes later.
	want := []store.AccountChange{{Device: "a", Wanted: store.AccountDisabled}, {Device: "b", Wanted: store.AccountEnabled}, {Device: "c", Wanted: store.AccountDeleted}}
	var seen []store.AccountChange
	applied, err := l.ApplyAccountChanges(l.Context(), 100, time.Minute, func(_ context.Context, c store.AccountChange) error {
		seen = append(seen, c)
		if c.Device == "b" {
			return errBroker
		}
		return nil
	})
	if applied != 1 || !errors.Is(err, errBroker) || !slices.Equal(seen, want[:2]) {
		l.Fatalf("applied %d of %v, %v", applied, seen, err)
	}
	// An account change that failed is tried again after the other changes.
	if diff := cmp.Diff([]store.AccountChange{want[2], want[1]}, l.applyChanges()); diff != "" {
		l.Error(diff)
	}
	if left := l.applyChanges(); len(left) != 0 {
		l.Errorf("applied again: %v", left)
	}
}

// TestLateDeletionSparesTheNewAccount checks a device that is deleted and created again under the same id. The
// deletion of its account is applied at the broker late. It must not delete the account of the new device.
func TestLateDeletionSparesTheNewAccount(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	l.RecordAccountChanges()
	_, err := l.EnsureDevices(l.Context(), "a")
	l.must(err)
	_, err = l.DeleteDevice(l.Context(), "op", "a", false)
	l.must(err)
	_, err = l.CreateDevice(l.Context(), "op", "a", store.DeviceSpec{}, []byte("1"), func(context.Context, bool) error { return nil })
	l.must(err)
	if left := l.applyChanges(); len(left) != 0 {
		l.Errorf("still to come: %v", left)
	}
}

// TestReplicasTalkToTheBrokerInTurn checks several replicas that apply account changes concurrently. All replicas together must send one
// change at a time to the broker, and exactly one replica must apply each recorded change.
func TestReplicasTalkToTheBrokerInTurn(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	const devices = 12
	l.RecordAccountChanges()
	for i := range devices {
		_, err := l.EnsureDevices(l.Context(), fmt.Sprint("blocked-", i))
		l.must(err)
		l.must(l.SetBlocked(l.Context(), "op", fmt.Sprint("blocked-", i), true, ""))
	}
	var inCall, applied sync.Mutex
	count := map[string]int{}
	occupyBroker := func() {
		if !inCall.TryLock() {
			l.Error("two at once")
			return
		}
		defer inCall.Unlock()
		polls := 0
		l.awaitCondition(func() bool { polls++; return polls > 4 }) // long enough for another call to overlap, if the calls were not serialized
	}
	var wait sync.WaitGroup
	for i := range devices {
		wait.Go(func() {
			_, err := l.CreateDevice(l.Context(), "op", fmt.Sprint("new-", i), store.DeviceSpec{}, fmt.Append(nil, i), func(context.Context, bool) error {
				occupyBroker()
				return nil
			})
			if err != nil {
				l.Error(err)
			}
		})
		wait.Go(func() {
			_, err := l.ApplyAccountChanges(l.Context(), 2, time.Minute, func(_ context.Context, c store.AccountChange) error {
				occupyBroker()
				applied.Lock()
				defer applied.Unlock()
				count[c.Device]++
				return nil
			})
			if err != nil {
				l.Error(err)
			}
		})
	}
	wait.Wait()
	for _, c := range l.applyChanges() {
		count[c.Device]++
	}
	for device, n := range count {
		if n != 1 {
			l.Errorf("%s was applied %d times", device, n)
		}
	}
	if len(count) != devices {
		l.Errorf("%d of %d changes applied", len(count), devices)
	}
}

// TestConcurrentCreatesSetOneAccount checks several calls that create the same device at the same time. Exactly one
// call succeeds, and the device's account at the broker has the secret of this call.
func TestConcurrentCreatesSetOneAccount(t *testing.T) {
	t.Parallel()
	l := openPostgres(t)
	for round := range 5 {
		id := fmt.Sprint("d-", round)
		var mu sync.Mutex
		var account, won []string
		var wait sync.WaitGroup
		for i := range 4 {
			secret := fmt.Sprint(round, "-", i)
			wait.Go(func() {
				_, err := l.CreateDevice(l.Context(), "op", id, store.DeviceSpec{}, []byte(secret), func(context.Context, bool) error {
					mu.Lock()
					defer mu.Unlock()
					account = append(account, secret)
					return nil
				})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					won = append(won, secret)
				case !errors.Is(err, store.ErrExists):
					l.Error(err)
				}
			})
		}
		wait.Wait()
		if len(won) != 1 || !slices.Equal(won, account) {
			l.Errorf("created with %v, the account was set to %v", won, account)
		}
	}
}
