package dispatcher

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

// claimRecorder is a fake ledger that grants every claim and records it.
type claimRecorder struct {
	Store
	claims []store.Claim
}

func (n *claimRecorder) Claim(_ context.Context, claims []store.Claim, _ bool) ([]store.ClaimOutcome, error) {
	n.claims = append(n.claims, claims...)
	out := make([]store.ClaimOutcome, len(claims))
	for i, c := range claims {
		out[i] = store.ClaimOutcome{Status: store.ClaimGranted, Grant: store.Grant{Task: c.Task}}
	}
	return out, nil
}

// TestWhatWaitedTooLongIsNotClaimed checks a call that sends the claims of several reports together: it leaves out
// exactly the claims that have waited longer than claimAge.
func TestWhatWaitedTooLongIsNotClaimed(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	ledger := &claimRecorder{}
	got, err := claimAll(t.Context(), ledger, now, []acquiredSlot{
		{store.Claim{Task: 1}, now.Add(-claimAge - 1)},
		{store.Claim{Task: 2}, now.Add(-claimAge)},
		{store.Claim{Task: 3}, now.Add(-time.Minute)},
		{store.Claim{Task: 4}, now},
	}, true)
	must.Succeed(t, err)
	for i, late := range []bool{true, false, true, false} {
		if got[i].late != late || (got[i].Status == store.ClaimGranted) == late || !late && got[i].Grant.Task != int64(i+1) {
			t.Errorf("claim %d: %+v", i+1, got[i])
		}
	}
	if len(ledger.claims) != 2 {
		t.Errorf("claimed %+v", ledger.claims)
	}
}

// TestAPanicMayHaveHadItsEffect checks a call to the ledger that panics: its outcome is unknown, so the call is not
// repeated and the slot is not released.
func TestAPanicMayHaveHadItsEffect(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		errors.New("refused"): true, store.ErrOutcomeUnknown: false,
		rescue.Call(func() error { panic("for the test") }): false,
	} {
		if certainlyChangedNothing(err) != want {
			t.Errorf("%v: want %t", err, want)
		}
	}
}
