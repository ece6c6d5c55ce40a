package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

// fakeAccounts is a fake broker that stores accounts of devices. Its calls can fail or hang.
type fakeAccounts struct {
	mu           sync.Mutex
	secrets      map[devices.ID]string
	calls        []string
	down         bool
	failuresLeft int           // number of the next calls that fail
	hangingCalls chan struct{} // if not nil, each call sends to hangingCalls and then waits until its context ends
	afterCall    func(calls int)
}

var errNoBroker = errors.New("no broker")

func (a *fakeAccounts) runCall(ctx context.Context, what string, change func()) error {
	a.mu.Lock()
	hangs, down := a.hangingCalls, a.down || a.failuresLeft > 0
	a.failuresLeft = max(a.failuresLeft-1, 0)
	a.mu.Unlock()
	if hangs != nil {
		hangs <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	if down {
		return errNoBroker
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, what)
	if change != nil {
		change()
	}
	if a.afterCall != nil {
		a.afterCall(len(a.calls))
	}
	return nil
}

func (a *fakeAccounts) Set(ctx context.Context, list ...devices.Account) error {
	what := "set"
	for _, one := range list {
		what += " " + string(one.Device)
		if !one.Enabled {
			what += " disabled"
		}
	}
	return a.runCall(ctx, what, func() {
		for _, one := range list {
			a.secrets[one.Device] = one.Password
		}
	})
}

func (a *fakeAccounts) AsksLedger() bool { return false }

func (a *fakeAccounts) Enable(ctx context.Context, d devices.ID) error {
	return a.runCall(ctx, "enable "+string(d), nil)
}

func (a *fakeAccounts) Disable(ctx context.Context, d devices.ID) error {
	return a.runCall(ctx, "disable "+string(d), nil)
}

func (a *fakeAccounts) Delete(ctx context.Context, d devices.ID) error {
	return a.runCall(ctx, "delete "+string(d), func() { delete(a.secrets, d) })
}

func (a *fakeAccounts) Disconnect(ctx context.Context, d devices.ID) error {
	return a.runCall(ctx, "disconnect "+string(d), nil)
}

// expectCalls checks which calls the fake broker received since the last call of expectCalls.
func (a *fakeAccounts) expectCalls(t *testing.T, want ...string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Equal(a.calls, want) {
		t.Errorf("the broker was told %q, want %q", a.calls, want)
	}
	a.calls = nil
}

func (a *fakeAccounts) setDown(down bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.down = down
}

func newAccountsBench(t *testing.T, changes ...func(*dispatcher.Config)) (*testBench, *fakeAccounts) {
	t.Helper()
	a := &fakeAccounts{secrets: map[devices.ID]string{}}
	b := newLightBench(t, append(changes, func(c *dispatcher.Config) { c.Accounts = a })...)
	b.store.RecordAccountChanges()
	return b, a
}

func TestAccountsFollowTheDevices(t *testing.T) {
	t.Parallel()
	b, a := newAccountsBench(t)
	_, token, err := b.Devices.CreateDevice(b.ctx, "op", "d1", store.DeviceSpec{}, "")
	if err != nil || a.secrets["d1"] != token {
		t.Fatalf("created: %v, the account's secret is not the token", err)
	}
	if token, _, err = b.Devices.RotateToken(b.ctx, "op", "d1", time.Hour, ""); err != nil || a.secrets["d1"] != token {
		t.Fatalf("rotated: %v, the account's secret is not the token", err)
	}
	a.expectCalls(t, "set d1", "set d1")
	for _, blocked := range []bool{true, false} {
		must.Succeed(t, b.Devices.SetBlocked(b.ctx, "op", "d1", blocked, ""))
	}
	_, _, err = b.Devices.RotateToken(b.ctx, "op", "d1", 0, "")
	must.Succeed(t, err)
	_, err = b.Devices.DeleteDevice(b.ctx, "op", "d1", false)
	must.Succeed(t, err)
	a.expectCalls(t, "disable d1", "enable d1", "set d1", "disconnect d1", "delete d1")
}

// newDevices returns devices for an import.
func newDevices(number int) (list []store.NewDevice) {
	for i := range number {
		list = append(list, store.NewDevice{ID: fmt.Sprint("d-", i)})
	}
	return list
}

func TestAnImportSetsTheAccounts(t *testing.T) {
	t.Parallel()
	b, a := newAccountsBench(t)
	list := newDevices(200)
	tokens, err := b.Devices.ImportDevices(b.ctx, "op", list, store.RefuseExisting, time.Hour)
	b.must(err)
	for i, d := range list {
		if a.secrets[devices.ID(d.ID)] != tokens[i] {
			t.Errorf("the secret of %s is not its token", d.ID)
		}
	}
	if requestCount := len(a.calls); requestCount > 100 {
		t.Errorf("the broker was told of 200 accounts in %d requests", requestCount)
	}
	followed, err := b.Devices.ApplyAccountChanges(b.ctx)
	if err != nil || followed != 0 {
		t.Errorf("followed %d, %v", followed, err)
	}
}

// shortStagingStore is a ledger that keeps the staged accounts of an import only for a short time.
type shortStagingStore struct{ *store.Store }

func (h shortStagingStore) SetStagedAccounts(ctx context.Context, stage store.Stage, ids []string, _ time.Duration, set func(context.Context) error) error {
	return h.Store.SetStagedAccounts(ctx, stage, ids, 2*time.Second, set)
}

func (h shortStagingStore) StageAccounts(ctx context.Context, stage store.Stage, list []store.NewDevice, existing store.OnExisting, _ time.Duration) ([]store.StagedDevice, error) {
	return h.Store.StageAccounts(ctx, stage, list, existing, 2*time.Second)
}

// The broker fails for one part of an import. The import must send this part again, and must succeed.
func TestAnImportOutlastsASlip(t *testing.T) {
	t.Parallel()
	b, a := newAccountsBench(t)
	a.afterCall = func(calls int) {
		if calls == 2 {
			a.failuresLeft = 1
		}
	}
	tokens, err := b.Devices.ImportDevices(b.ctx, "op", newDevices(70), store.RefuseExisting, 0)
	b.must(err)
	for i, token := range tokens {
		if a.secrets[devices.ID(fmt.Sprint("d-", i))] != token {
			t.Errorf("the secret of d-%d is not its token", i)
		}
	}
}

// The ledger refuses an import. It must do so before any account is created at the broker.
func TestAnImportIsRefusedBeforeTheBrokerHearsOfIt(t *testing.T) {
	t.Parallel()
	b, a := newAccountsBench(t)
	unknown := newDevices(70)
	unknown[60].Profile = "unknown"
	if _, err := b.Devices.ImportDevices(b.ctx, "op", unknown, store.RefuseExisting, 0); !errors.Is(err, store.ErrUnknownProfile) {
		t.Errorf("imported: %v", err)
	}
	a.expectCalls(t)
}

// An import fails at the broker, or its client disconnects. No account and no device may be left behind.
func TestAnImportThatFailsLeavesNoAccount(t *testing.T) {
	t.Parallel()
	b, a := newAccountsBench(t)
	r := credentials.New(credentials.Config{Ledger: shortStagingStore{b.store}, Accounts: a, Now: time.Now, Meters: meters.New(nil), Logger: slog.New(slog.DiscardHandler)})
	fails := func(ctx context.Context, list []store.NewDevice, want error) {
		t.Helper()
		if _, err := r.ImportDevices(ctx, "op", list, store.RefuseExisting, 0); !errors.Is(err, want) {
			t.Errorf("imported: %v, want %v", err, want)
		}
		if a.calls == nil {
			t.Error("it failed before there was an account")
		}
		a.calls, a.afterCall, a.down = nil, nil, false
		_, err := b.Devices.ApplyAccountChanges(b.ctx)
		b.must(err)
		a.calls = nil
		if len(a.secrets) != 0 {
			t.Errorf("%d accounts after %v", len(a.secrets), want)
		}
		if _, err := b.store.Device(b.ctx, list[0].ID); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("half of it was imported: %v", err)
		}
	}
	a.afterCall = func(calls int) {
		if calls == 2 {
			a.down = true
		}
	}
	fails(b.ctx, newDevices(70), credentials.ErrBroker)
	ctx, cancel := context.WithCancel(b.ctx)
	a.afterCall = func(int) { cancel() }
	fails(ctx, newDevices(70), context.Canceled)
}

// unknownOutcomeStore is a ledger that commits an import but returns ErrOutcomeUnknown.
type unknownOutcomeStore struct{ *store.Store }

func (u unknownOutcomeStore) ImportDevices(
	ctx context.Context, actor string, list []store.NewDevice, existing store.OnExisting, overlap time.Duration, stage store.Stage,
) ([]bool, error) {
	_, err := u.Store.ImportDevices(ctx, actor, list, existing, overlap, stage)
	return nil, errors.Join(err, store.ErrOutcomeUnknown)
}

// The import was committed, but the ledger returns that the outcome is unknown. The accounts at the broker must stay.
func TestAnImportThatMayHaveSucceededKeepsItsAccounts(t *testing.T) {
	t.Parallel()
	b, a := newAccountsBench(t)
	r := credentials.New(credentials.Config{Ledger: unknownOutcomeStore{b.store}, Accounts: a, Now: time.Now, Meters: meters.New(nil), Logger: slog.New(slog.DiscardHandler)})
	if _, err := r.ImportDevices(b.ctx, "op", newDevices(10), store.RefuseExisting, 0); !errors.Is(err, store.ErrOutcomeUnknown) {
		t.Fatalf("imported: %v", err)
	}
	if followed, err := r.ApplyAccountChanges(b.ctx); followed != 0 || err != nil || len(a.secrets) != 10 {
		t.Errorf("followed %d, %v; %d accounts", followed, err, len(a.secrets))
	}
}

func TestBlockingDoesNotNeedTheBroker(t *testing.T) {
	t.Parallel()
	b, a := newAccountsBench(t)
	for _, id := range []devices.ID{"d1", "d2"} {
		_, _, err := b.Devices.CreateDevice(b.ctx, "op", id, store.DeviceSpec{}, "")
		must.Succeed(t, err)
	}
	a.setDown(true)
	if _, _, err := b.Devices.CreateDevice(b.ctx, "op", "d3", store.DeviceSpec{}, ""); !errors.Is(err, credentials.ErrBroker) {
		t.Errorf("created without the broker: %v", err)
	}
	if _, err := b.store.Device(b.ctx, "d3"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("d3 is half-created: %v", err)
	}
	if err := b.Devices.SetBlocked(b.ctx, "op", "d1", true, ""); err != nil {
		t.Errorf("blocked: %v", err)
	}
	if _, err := b.Devices.DeleteDevice(b.ctx, "op", "d2", false); err != nil {
		t.Errorf("deleted: %v", err)
	}
	if n, err := b.Devices.ApplyAccountChanges(b.ctx); n != 0 || !errors.Is(err, errNoBroker) {
		t.Errorf("followed %d, %v", n, err)
	}
	a.setDown(false)
	if n, err := b.Devices.ApplyAccountChanges(b.ctx); n != 2 || err != nil {
		t.Errorf("followed %d, %v; want both", n, err)
	}
	slices.Sort(a.calls)
	a.expectCalls(t, "delete d2", "disable d1", "set d1", "set d2")
	if _, _, err := b.Devices.CreateDevice(b.ctx, "op", "d3", store.DeviceSpec{}, ""); err != nil {
		t.Errorf("the same again: %v", err)
	}
}

func TestEnrollmentSetsTheAccount(t *testing.T) {
	t.Parallel()
	b, a := newAccountsBench(t, func(c *dispatcher.Config) { c.FleetMode = credentials.FleetEnroll })
	a.setDown(true)
	if _, err := b.tryReport("new", `{}`); !errors.Is(err, devices.ErrUnavailable) {
		t.Errorf("enrolled without the broker: %v", err)
	}
	a.setDown(false)
	if token := b.sendReport("new", `{}`).Credential; token == "" || a.secrets["new"] != token {
		t.Error("the account's secret is not the credential")
	}
}

// The broker hangs. At most one transaction of the ledger may wait for it.
func TestHangingBrokerHoldsUpOneTransaction(t *testing.T) {
	t.Parallel()
	b, a := newAccountsBench(t)
	a.hangingCalls = make(chan struct{})
	ctx, cancel := context.WithCancel(b.ctx)
	errs := make(chan error)
	create := func(id devices.ID) {
		_, _, err := b.Devices.CreateDevice(ctx, "op", id, store.DeviceSpec{}, "")
		errs <- err
	}
	go create("d1")
	<-a.hangingCalls
	for _, id := range []devices.ID{"d2", "d3", "d4"} {
		go create(id)
	}
	cancel()
	for range 4 {
		select {
		case <-a.hangingCalls:
			t.Error("a second one waits for the broker")
		case err := <-errs:
			if err == nil {
				t.Error("created")
			}
		}
	}
}

// reportOverBroker sends a report of an idle device over its session at the broker. reportID may be empty.
func (b *testBench) reportOverBroker(device devices.ID, reportID string) (devices.Reply, error) {
	b.t.Helper()
	return b.HandleReport(b.ctx, devices.Caller{Device: device, Via: devices.ViaSession}, devices.Report{Accept: true, ID: reportID})
}

func TestAReplacedTokenOpensNoSession(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	_, first, err := b.Devices.CreateDevice(b.ctx, "op", "d1", store.DeviceSpec{}, "")
	b.must(err)
	b.must(b.AuthenticateSession(b.ctx, "d1", first))
	second, _, err := b.Devices.RotateToken(b.ctx, "op", "d1", 0, "")
	b.must(err)
	if err := b.AuthenticateSession(b.ctx, "d1", first); !errors.Is(err, devices.ErrUnauthenticated) {
		t.Errorf("a new session with the token that was replaced: %v", err)
	}
	if _, err := b.Authenticate(b.ctx, "d1", first); !errors.Is(err, devices.ErrUnauthenticated) {
		t.Errorf("a report with the token that was replaced: %v", err)
	}
	b.must(b.AuthenticateSession(b.ctx, "d1", second))
}

// A device was deleted, or its tokens were revoked, but its session at the broker is still open. Reports of this session must be refused.
// Only a token may register the device again.
func TestOnlyACredentialBringsADeletedDeviceBack(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	expect := func(device devices.ID, want error) {
		t.Helper()
		if _, err := b.reportOverBroker(device, "r"); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", device, err, want)
		}
	}
	_, token, err := b.Devices.CreateDevice(b.ctx, "op", "d2", store.DeviceSpec{}, "")
	b.must(err)
	b.must(b.AuthenticateSession(b.ctx, "d2", token))
	for _, device := range []devices.ID{"d1", "d2"} { // d1 has a session by the fleet token, d2 by its own token
		expect(device, nil)
		_, err := b.Devices.DeleteDevice(b.ctx, "op", device, false)
		b.must(err)
		expect(device, devices.ErrForbidden)
		if _, err := b.store.Device(b.ctx, string(device)); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%s is back: %v", device, err)
		}
	}
	b.must(b.AuthenticateSession(b.ctx, "d1", "fleet-token-of-the-tests"))
	expect("d1", nil)
	b.sendReport("d2", `{}`) // with the fleet token, over HTTP
	expect("d2", nil)
}

func TestADeviceWhoseOwnTokensAreGoneIsForbidden(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	b.registerDevices("d1")
	b.must(b.store.MarkOwnTokens(b.ctx, "d1"))
	if _, err := b.reportOverBroker("d1", "r"); !errors.Is(err, devices.ErrForbidden) {
		t.Errorf("a revoked device: %v", err)
	}
}
