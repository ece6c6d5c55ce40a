package dispatcher_test

import (
	"errors"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

func TestABlockedDeviceIsForbiddenAtTheBroker(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	b.sendReport("d1", `{}`)
	must.Succeed(t, b.store.SetBlocked(b.ctx, "test", "d1", true, ""))
	if _, err := b.reportOverBroker("d1", "r"); !errors.Is(err, devices.ErrForbidden) {
		t.Errorf("report: %v", err)
	}
	if err := b.AuthenticateSession(b.ctx, "d1", "fleet-token-of-the-tests"); !errors.Is(err, devices.ErrForbidden) {
		t.Errorf("session: %v", err)
	}
}

// TestABadResultIsAMention checks a report with an invalid result of a grant. The report mentions the grant, so the
// grant is not redelivered.
func TestABadResultIsAMention(t *testing.T) {
	t.Parallel()
	b := newLightBench(t)
	b.createPool("a", 5, minute)
	b.createBatch("a", nil, "d1")
	g := b.expectGrant("d1")
	if reply := b.sendReport("d1", resultReport(g, "nonsense", "")); reply.Reason != devices.ReasonBusy {
		t.Errorf("reply %+v, want busy", reply)
	}
}

func TestAClaimThatFailedForCertainGivesItsSlotBack(t *testing.T) {
	t.Parallel()
	b, spies := newSpiedBench(t)
	spies.failCalls("Claim")
	b.createPool("a", 5, minute)
	b.createBatch("a", nil, "d1")
	b.expectReason("d1", `{}`, devices.ReasonUnavailable)
	b.expectHeld(0)
}
