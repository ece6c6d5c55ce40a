package credentials_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/internal/pace"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

const (
	stolenToken = "stolen-fleet-token"
	newToken    = "new-fleet-token"
)

// enrollingLedger registers and enrolls every device, and counts these calls.
type enrollingLedger struct {
	credentials.Ledger
	registered, enrolled int
}

func (c *enrollingLedger) RegisterDevices(_ context.Context, all ...store.Registration) ([]store.Registered, error) {
	c.registered += len(all)
	registered := make([]store.Registered, len(all))
	for i, r := range all {
		registered[i].ID = r.Device
	}
	return registered, nil
}

func (c *enrollingLedger) EnrollDevice(context.Context, string, []byte, store.SetAccount) error {
	c.enrolled++
	return nil
}

// rateBench is a registry with a clock that only the test moves.
type rateBench struct {
	*testing.T
	*credentials.Registry
	ledger *enrollingLedger
	now    time.Time
	next   int // number of the next unknown device
}

func newRateBench(t *testing.T, mode credentials.FleetMode, rate pace.Options) *rateBench {
	t.Helper()
	b := &rateBench{T: t, ledger: &enrollingLedger{}, now: time.Unix(1_800_000_000, 0)}
	b.Registry = credentials.New(credentials.Config{
		Ledger: b.ledger, FleetTokens: []string{stolenToken, newToken}, FleetMode: mode, Rate: rate, Meters: meters.New(nil), Now: func() time.Time { return b.now },
	})
	return b
}

// report sends a report of a device with a fleet token. If isKnown is false, the ledger does not know the device.
func (b *rateBench) report(token string, device devices.ID, isKnown bool) error {
	b.Helper()
	caller, err := b.Authenticate(b.Context(), device, token)
	must.Succeed(b, err)
	view := store.DeviceView{}
	if isKnown {
		view.Device = &store.Device{ID: string(device)}
	}
	_, err = b.Admit(b.Context(), caller, view)
	return err
}

// expectAccepted sends the first reports of 5,000 unknown devices with a fleet token, all at the same time, and checks how many of them are
// accepted. All others must be refused because of the rate.
func (b *rateBench) expectAccepted(token string, want int) {
	b.Helper()
	accepted := 0
	for range 5000 {
		b.next++
		err := b.report(token, devices.ID(fmt.Sprint("unknown-", b.next)), false)
		if err == nil {
			accepted++
		} else if !errors.Is(err, devices.ErrRegistrationRate) {
			b.Fatal(err)
		}
	}
	if accepted != want {
		b.Errorf("%d of 5000 unknown devices were accepted, want %d", accepted, want)
	}
}

// TestAStolenFleetTokenRegistersSlowly checks a fleet token that registers unknown ids as fast as it can: after the burst, only as many ids a
// second are registered as the rate allows. Another fleet token and known devices are not affected.
func TestAStolenFleetTokenRegistersSlowly(t *testing.T) {
	t.Parallel()
	b := newRateBench(t, credentials.FleetAny, pace.Options{Rate: 10, Burst: 1000})
	b.expectAccepted(stolenToken, 1000)
	if err := b.report(stolenToken, "known", true); err != nil {
		t.Errorf("a known device: %v", err)
	}
	b.expectAccepted(newToken, 1000)
	for _, wait := range []struct {
		time time.Duration
		want int
	}{{99 * time.Millisecond, 0}, {time.Millisecond, 1}, {time.Second, 10}, {time.Minute, 600}, {time.Hour, 1000}} {
		b.now = b.now.Add(wait.time)
		b.expectAccepted(stolenToken, wait.want)
	}
	if b.ledger.registered != 3611 {
		t.Errorf("the ledger registered %d devices, want 3611", b.ledger.registered)
	}
}

// TestSessionsRegisterSlowly checks unknown devices with sessions at an MQTT broker: all sessions together have one rate, because the
// dispatcher does not know their tokens.
func TestSessionsRegisterSlowly(t *testing.T) {
	t.Parallel()
	b := newRateBench(t, credentials.FleetAny, pace.Options{Rate: 1, Burst: 2})
	for i, want := range []error{nil, nil, devices.ErrRegistrationRate} {
		_, err := b.Admit(t.Context(), devices.Caller{Device: devices.ID(fmt.Sprint(i)), Via: devices.ViaSession}, store.DeviceView{})
		if !errors.Is(err, want) {
			t.Errorf("%d: %v, want %v", i, err, want)
		}
	}
}

// TestEveryEnrollmentCounts checks a known device that enrolls again and again: each enrollment counts as a registration, because it changes
// the account of the device at the broker.
func TestEveryEnrollmentCounts(t *testing.T) {
	t.Parallel()
	b := newRateBench(t, credentials.FleetEnroll, pace.Options{Rate: 1, Burst: 2})
	for i, want := range []error{nil, nil, devices.ErrRegistrationRate} {
		if err := b.report(stolenToken, "known", true); !errors.Is(err, want) {
			t.Errorf("%d: %v, want %v", i, err, want)
		}
	}
	if b.ledger.enrolled != 2 {
		t.Errorf("%d enrollments, want 2", b.ledger.enrolled)
	}
}

func TestARateOfZeroLimitsNothing(t *testing.T) {
	t.Parallel()
	b := newRateBench(t, credentials.FleetAny, pace.Options{Burst: 1})
	b.expectAccepted(stolenToken, 5000)
}
