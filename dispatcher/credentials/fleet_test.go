package credentials

import (
	"context"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

// fleetLedger is a ledger in which the token of each device is the name of the device.
type fleetLedger struct {
	Ledger
	size, lookUps int
}

func (f *fleetLedger) TokenByHash(_ context.Context, hash []byte) (store.Token, error) {
	device := strconv.Itoa(f.lookUps % f.size)
	if f.lookUps++; HashToken(device) != [32]byte(hash) {
		return store.Token{}, store.ErrNotFound
	}
	return store.Token{Device: device}, nil
}

func (f *fleetLedger) ChangedTokens(context.Context, int64) (store.TokenChanges, error) {
	return store.TokenChanges{Now: time.Unix(1_790_000_000, 0)}, nil
}

func newFleetRegistry(t *testing.T, size int) (*fleetLedger, *Registry) {
	t.Helper()
	f := &fleetLedger{size: size}
	r := New(Config{Ledger: f, FleetMode: FleetAny, Meters: meters.New(nil), Now: func() time.Time { return time.Unix(1, 0) }})
	must.Succeed(t, r.DropChangedTokens(t.Context()))
	return f, r
}

// admitDevices authenticates and admits each device once.
func (f *fleetLedger) admitDevices(t *testing.T, r *Registry) {
	t.Helper()
	for i := range f.size {
		device := strconv.Itoa(i)
		caller, err := r.Authenticate(t.Context(), devices.ID(device), device)
		must.Succeed(t, err)
		r.RecordAdmission(caller, store.ReachNone)
	}
}

func liveHeapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestAFleetIsRemembered checks that a replica looks up the token of each device only once, and that a cached
// device needs little memory.
func TestAFleetIsRemembered(t *testing.T) { //nolint:paralleltest // measures memory
	f, r := newFleetRegistry(t, 60_000)
	before := liveHeapBytes()
	f.admitDevices(t, r)
	f.admitDevices(t, r)
	if f.lookUps != f.size {
		t.Errorf("%d look-ups of %d tokens", f.lookUps, f.size)
	}
	// Each entry of the cache has 24 bytes, and the map of the entries has just doubled. The cached tokens need 250
	// kB.
	each := (liveHeapBytes() - before - 250_000) / uint64(f.size)
	if t.Logf("%d bytes a device", each); each > 80 {
		t.Errorf("%d bytes a device", each)
	}
	runtime.KeepAlive(r)
}

// TestMemoryIsBounded checks that the cache keeps at most its maximum number of devices, and forgets the others.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	f, r := newFleetRegistry(t, 30)
	r.maxDevices = 10
	f.admitDevices(t, r)
	if n := len(r.devices); n != 10 {
		t.Errorf("%d devices are remembered", n)
	}
	for i := range f.size {
		r.applyTokenChanges(time.Unix(1, 0), 0, store.TokenChanges{Tokens: []store.TokenChange{{Hash: make([]byte, 32), Device: strconv.Itoa(i)}}, Now: time.Unix(1_790_000_000, 0)})
	}
	if n := len(r.devices); n != 0 {
		t.Errorf("%d devices are remembered whose tokens were changed", n)
	}
}

// TestADoubtedDeviceIsReadAgain checks ForgetAdmission, which removes cached admissions (results of the check that
// a device may report). It removes the admission of the given device or, with an empty name, of all devices. A call
// for another device keeps the admission.
func TestADoubtedDeviceIsReadAgain(t *testing.T) {
	t.Parallel()
	_, r := newFleetRegistry(t, 1)
	caller := func(device devices.ID) devices.Caller { return devices.Caller{Device: device, Via: devices.ViaSession} }
	for _, news := range []string{"a", ""} {
		r.RecordAdmission(caller("a"), 0)
		r.ForgetAdmission("b")
		if _, admitted := r.ReachAtAdmission(caller("a")); !admitted {
			t.Error("the news of another device ended the admission")
		}
		r.ForgetAdmission(news)
		if _, admitted := r.ReachAtAdmission(caller("a")); admitted {
			t.Errorf("after the news of %q, the device is still admitted", news)
		}
	}
}
