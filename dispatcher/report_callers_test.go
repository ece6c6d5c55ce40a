package dispatcher_test

import (
	"errors"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

func TestABlockedDeviceIsToldToStop(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	b.createPool("a", 5, minute)
	b.createBatch("a", nil, "d1")
	g := b.expectGrant("d1")
	must.Succeed(t, b.store.SetBlocked(b.ctx, "test", "d1", true, ""))
	reply := b.sendReport("d1", runningReport(g))
	if len(reply.Cancel) != 1 || reply.Cancel[0].Why != devices.CancelBlocked || reply.Reason != devices.ReasonBlocked {
		t.Errorf("reply %+v, want cancel blocked", reply)
	}
	b.sendResult("d1", g, "succeeded", "", devices.OutcomeRecorded) // no result is lost
	b.expectState(g.ID, store.Succeeded)
}

func TestTheFleetTokenHoldsUntilADeviceUsesItsOwn(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	own := credentials.NewToken()
	hash := credentials.HashToken(own)
	_, err := b.store.CreateDevice(b.ctx, "test", "d1", store.DeviceSpec{}, hash[:], nil)
	must.Succeed(t, err)
	authenticate := func(device, token string) (devices.Caller, error) {
		return b.Authenticate(b.ctx, devices.ID(device), token)
	}
	if _, err := authenticate("d1", "nobody's"); !errors.Is(err, devices.ErrUnauthenticated) {
		t.Errorf("unknown token: %v", err)
	}
	if _, err := authenticate("d2", own); !errors.Is(err, devices.ErrForbidden) {
		t.Errorf("d1's token for d2: %v", err)
	}
	b.expectReason("d1", `{}`, devices.ReasonNone) // the fleet token can still act for the device
	caller, err := authenticate("d1", own)
	if err != nil || caller.Via != devices.ViaOwnToken {
		t.Fatalf("own token: %+v, %v", caller, err)
	}
	_, err = b.HandleReport(b.ctx, caller, devices.Report{Accept: true})
	must.Succeed(t, err)
	if _, err := b.tryReport("d1", `{}`); !errors.Is(err, devices.ErrForbidden) {
		t.Errorf("fleet token after the own one was used: %v", err)
	}
	if err := b.AuthenticateSession(b.ctx, "d1", "fleet-token-of-the-tests"); !errors.Is(err, devices.ErrForbidden) {
		t.Errorf("fleet token at the broker: %v", err)
	}
}

func TestEnrollmentGivesADeviceItsOwnToken(t *testing.T) {
	t.Parallel()
	b := newLightBench(t, func(c *dispatcher.Config) { c.FleetMode = credentials.FleetEnroll })
	first := b.sendReport("new", `{}`).Credential
	second := b.sendReport("new", `{}`).Credential // the first reply was lost
	if first == "" || second == "" || first == second {
		t.Fatalf("credentials %q and %q", first, second)
	}
	if _, err := b.Authenticate(b.ctx, "new", first); !errors.Is(err, devices.ErrUnauthenticated) {
		t.Errorf("replaced credential: %v", err)
	}
	caller, err := b.Authenticate(b.ctx, "new", second)
	must.Succeed(t, err)
	reply, err := b.HandleReport(b.ctx, caller, devices.Report{Accept: true})
	if err != nil || reply.Credential != "" {
		t.Errorf("with its own token: %+v, %v", reply, err)
	}
	if _, err := b.tryReport("new", `{}`); !errors.Is(err, devices.ErrForbidden) {
		t.Errorf("fleet token afterwards: %v", err)
	}
}

// A device reports over a broker without an id in its report. It must get no task, neither a new one nor a redelivered one: without the id,
// the device could not tell from which report the lease counts.
func TestOverBrokersATaskNeedsAnID(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	b.createPool("a", 5, minute)
	b.createBatch("a", nil, "d1")
	for redelivered := range 2 {
		reply, err := b.reportOverBroker("d1", "")
		if err != nil || reply.Task != nil || reply.Code != "id_required" {
			t.Errorf("without id: %+v, %v", reply, err)
		}
		reply, err = b.reportOverBroker("d1", "r1")
		if err != nil || reply.Task == nil || reply.Task.Redelivered != redelivered || reply.Re != "r1" {
			t.Errorf("with id: %+v, %v; want it redelivered %d times", reply, err, redelivered)
		}
	}
}

func TestBrokerDevicesWithoutAFleetTokenMustBeKnown(t *testing.T) {
	t.Parallel()
	b := newLightBench(t, func(c *dispatcher.Config) { c.FleetTokens = nil })
	if _, err := b.reportOverBroker("d1", "r"); !errors.Is(err, devices.ErrForbidden) {
		t.Errorf("unknown device: %v", err)
	}
	if _, err := b.store.Device(b.ctx, "d1"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a forbidden report registered the device: %v", err)
	}
}
