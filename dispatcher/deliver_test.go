package dispatcher_test

import (
	"context"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/store"
)

// lateClaimStore is a ledger that returns a claim so late that little of the lease is left.
type lateClaimStore struct{ dispatcher.Store }

func (s lateClaimStore) Claim(ctx context.Context, claims []store.Claim, wait bool) ([]store.ClaimOutcome, error) {
	outcomes, err := s.Store.Claim(ctx, claims, wait)
	for i := range outcomes {
		outcomes[i].Grant.Remaining -= 50 * time.Second
	}
	return outcomes, err
}

// TestAGrantWithNoTimeLeftIsNotDelivered checks a grant whose remaining lease is below the minimum of lease_ms: its
// task is not sent to the device.
func TestAGrantWithNoTimeLeftIsNotDelivered(t *testing.T) {
	t.Parallel()
	b := newLightBench(t, func(c *dispatcher.Config) { c.Store = lateClaimStore{c.Store} })
	b.createPool("a", 5, minute)
	b.createBatch("a", nil, "d1")
	b.expectReason("d1", `{}`, devices.ReasonBusy) // 10 s are left, and the margin is 10 s
	b.expectHeld(1)
}
