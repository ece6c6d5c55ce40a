package dispatcher_test

import (
	"errors"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/internal/pace"
	"github.com/fleetslots/dispatcher/store"
)

const fleetToken = "fleet-token-of-the-tests"

func useEnrollMode(c *dispatcher.Config) { c.FleetMode = credentials.FleetEnroll }

// createDevice registers a device as an operator does, and returns its token.
func (b *testBench) createDevice(id devices.ID) (token string) {
	b.t.Helper()
	_, token, err := b.Devices.CreateDevice(b.ctx, "op", id, store.DeviceSpec{}, "")
	b.must(err)
	return token
}

// TestADeviceOfAnOperatorIsNotEnrolled checks a device whose token an operator created: it gets no other token by
// enrollment, even if it has never used that token.
func TestADeviceOfAnOperatorIsNotEnrolled(t *testing.T) {
	t.Parallel()
	b := newLightBench(t, useEnrollMode)
	token := b.createDevice("made")
	b.sendReport("enrolled", `{}`)
	_, _, err := b.Devices.RotateToken(b.ctx, "op", "enrolled", 0, "")
	b.must(err)
	for _, device := range []string{"made", "enrolled"} {
		if reply, err := b.tryReport(device, `{}`); !errors.Is(err, devices.ErrForbidden) {
			t.Errorf("%s: %+v, %v, want forbidden", device, reply, err)
		}
	}
	if _, err := b.Authenticate(b.ctx, "made", token); err != nil {
		t.Errorf("the operator's token: %v", err)
	}
}

// TestADeviceThatCameByItselfIsEnrolled checks a device that registered itself in the enrollment mode "any". After a change of the mode to
// "enroll", the device gets a token.
func TestADeviceThatCameByItselfIsEnrolled(t *testing.T) {
	t.Parallel()
	b := newLightBench(t, useEnrollMode)
	b.registerDevices("old")
	if b.sendReport("old", `{}`).Credential == "" {
		t.Error("no credential")
	}
}

func TestInEnrollAFleetTokenOpensNoSession(t *testing.T) {
	t.Parallel()
	b := newLightBench(t, useEnrollMode)
	b.createDevice("made")
	b.registerDevices("known")
	for _, device := range []devices.ID{"made", "known", "unknown"} {
		if err := b.AuthenticateSession(b.ctx, device, fleetToken); !errors.Is(err, devices.ErrForbidden) {
			t.Errorf("%s: %v, want forbidden", device, err)
		}
	}
}

// TestABlockOutlivesDeletion checks a device that is blocked and then deleted. However it is registered again, it
// is still blocked until an operator unblocks it.
func TestABlockOutlivesDeletion(t *testing.T) {
	t.Parallel()
	ways := map[string]func(*testBench){
		"report":  func(b *testBench) { b.sendReport("d1", `{}`) },
		"session": func(b *testBench) { _ = b.AuthenticateSession(b.ctx, "d1", fleetToken) },
		"create":  func(b *testBench) { b.createDevice("d1") },
		"import": func(b *testBench) {
			_, err := b.Devices.ImportDevices(b.ctx, "op", []store.NewDevice{{ID: "d1"}}, store.RefuseExisting, 0)
			b.must(err)
		},
		"enroll": func(b *testBench) {
			b.registerDevices("d1")
			b.must(b.store.EnrollDevice(b.ctx, "d1", []byte("1"), nil))
		},
	}
	for name, back := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newLightBench(t)
			b.registerDevices("d1")
			b.must(b.Devices.SetBlocked(b.ctx, "op", "d1", true, ""))
			for range 2 { // repeated, to check that a second deletion keeps the block, too
				_, err := b.Devices.DeleteDevice(b.ctx, "op", "d1", false)
				b.must(err)
				back(b)
				if d, err := b.store.Device(b.ctx, "d1"); err != nil || !d.Blocked {
					t.Fatalf("%+v, %v, want it blocked", d, err)
				}
			}
			b.must(b.Devices.SetBlocked(b.ctx, "op", "d1", false, ""))
			_, err := b.Devices.DeleteDevice(b.ctx, "op", "d1", false)
			b.must(err)
			back(b)
			if d, err := b.store.Device(b.ctx, "d1"); err != nil || d.Blocked {
				t.Errorf("%+v, %v, want it unblocked", d, err)
			}
		})
	}
}

func TestABlockedDeviceThatComesBackGetsNothing(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	b.createPool("a", 5, minute)
	b.registerDevices("d1", "d2")
	for _, device := range []devices.ID{"d1", "d2"} {
		b.must(b.Devices.SetBlocked(b.ctx, "op", device, true, ""))
		_, err := b.Devices.DeleteDevice(b.ctx, "op", device, false)
		b.must(err)
	}
	b.createBatch("a", nil, "d1", "d2")
	b.expectReason("d1", `{}`, devices.ReasonBlocked)
	if err := b.AuthenticateSession(b.ctx, "d2", fleetToken); !errors.Is(err, devices.ErrForbidden) {
		t.Errorf("a session: %v, want forbidden", err)
	}
}

// TestATokenUsedAtTheBrokerEndsTheFleets checks a device with its own token that had a session at a broker. The
// broker checks passwords itself and does not report which token it accepted. After this session, the device can no
// longer use the fleet token.
func TestATokenUsedAtTheBrokerEndsTheFleets(t *testing.T) {
	t.Parallel()
	b, _ := newAccountsBench(t)
	b.createDevice("d1")
	for _, device := range []devices.ID{"d1", "tokenless"} {
		_, err := b.reportOverBroker(device, "r")
		b.must(err)
	}
	if _, err := b.tryReport("d1", `{}`); !errors.Is(err, devices.ErrForbidden) {
		t.Errorf("fleet token: %v, want forbidden", err)
	}
	b.sendReport("tokenless", `{}`)
	if _, err := b.reportOverBroker("tokenless", "r"); err != nil { // the device without a token is still admitted
		t.Errorf("over the broker again: %v", err)
	}
}

func blockNewDevices(c *dispatcher.Config) { c.BlockNewDevices = true }

// TestANewDeviceWaitsForApproval checks an installation that blocks the devices that register themselves: such a device is granted nothing
// until an operator unblocks it. A device that an operator registered is not blocked.
func TestANewDeviceWaitsForApproval(t *testing.T) {
	t.Parallel()
	b := newLightBench(t, blockNewDevices)
	b.createPool("a", 5, minute)
	b.createDevice("made")
	b.createBatch("a", nil, "new", "made")
	for range 2 {
		b.expectReason("new", `{}`, devices.ReasonBlocked)
	}
	b.expectGrant("made")
	if _, err := b.reportOverBroker("session", "r1"); !errors.Is(err, devices.ErrForbidden) {
		t.Errorf("a session: %v, want forbidden", err)
	}
	if d, err := b.store.Device(b.ctx, "session"); err != nil || !d.Blocked {
		t.Errorf("the device of the session: %+v, %v, want it registered and blocked", d, err)
	}
	b.must(b.Devices.SetBlocked(b.ctx, "op", "new", false, ""))
	b.expectGrant("new")
}

// TestANewDeviceIsEnrolledAfterItsApproval checks a new device in the enrollment mode "enroll": while it waits for its approval, it gets no
// token, and its reports do not count as registrations.
func TestANewDeviceIsEnrolledAfterItsApproval(t *testing.T) {
	t.Parallel()
	b := newLightBench(t, useEnrollMode, blockNewDevices, func(c *dispatcher.Config) { c.RegistrationRate = pace.Options{Rate: 1, Burst: 2} })
	for range 5 {
		if reply := b.sendReport("new", `{}`); reply.Credential != "" || reply.Reason != devices.ReasonBlocked {
			t.Errorf("%+v, want it blocked, without a credential", reply)
		}
	}
	b.must(b.Devices.SetBlocked(b.ctx, "op", "new", false, ""))
	if reply := b.sendReport("new", `{}`); reply.Credential == "" {
		t.Errorf("%+v, want a credential", reply)
	}
}
