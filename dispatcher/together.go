package dispatcher

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/internal/coalesce"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/store"
)

// claimAge is the maximum time between the acquisition of a slot and the sending of its
// claim. claimLimit is the maximum duration of the claim. Their sum is well below the age of
// an orphan, so reconciliation never frees a slot while it is being claimed.
const (
	claimAge   = 3 * time.Second
	claimLimit = 5 * time.Second
)

// viewLimit limits the time of a read of devices to half of handleLimit.
const viewLimit = handleLimit / 2

// Limits of the coalesced calls of each kind.
const (
	lanes  = 2  // maximum number of concurrent calls
	fill   = 32 // a second call begins while one is in progress if this number of entries wait
	atMost = 64 // maximum number of entries in one call
)

// together coalesces the calls to the ledger that the reports of many devices need.
type together struct {
	views        *viewing
	results      *coalesce.Calls[struct{}, []store.Result, []store.ResultOutcome]
	claims       *claiming
	suppressions *coalesce.Calls[struct{}, []store.Suppression, []bool]
}

func newTogether(ledger Ledger, settle store.Settle, now func() time.Time, panicked rescue.Told) together {
	record := func(ctx context.Context, all []store.Result) ([]store.ResultOutcome, error) {
		return ledger.RecordResults(ctx, all, settle), nil
	}
	end := func(ctx context.Context, all []store.Suppression) ([]bool, error) { return ledger.Suppress(ctx, all) }
	return together{
		views: newViewing(ledger, panicked), results: newRecording(record, panicked),
		claims: newClaiming(ledger, now, panicked), suppressions: newRecording(end, panicked),
	}
}

// acquired is a slot that the semaphore gave, with the claim that is to be made for it.
type acquired struct {
	store.Claim
	asked time.Time // time of the request to the semaphore
}

// claimed is the outcome of the claim of an acquired slot.
type claimed struct {
	store.ClaimOutcome
	late bool // the slot was not claimed, because more than claimAge had passed
}

// viewing reads many devices in one call: only their registrations if the key whole is false, and
// everything that their reports need if it is true.
type viewing = coalesce.Calls[whole, string, store.View]

type whole bool

func newViewing(ledger viewLedger, panicked rescue.Told) *viewing {
	view := func(ctx context.Context, all whole, names []string) ([]store.View, error) {
		if all {
			return ledger.Views(ctx, names)
		}
		return ledger.Registered(ctx, names)
	}
	return &viewing{Call: view, Alone: hadNoEffect, Lanes: lanes, Fill: fill, Most: atMost, Limit: viewLimit, Panicked: panicked}
}

// claiming claims slots of all pools in one call. A claim that finds its pool locked is repeated in a
// call for this pool alone, which waits for the lock: so a locked pool does not delay other pools.
// Claims of callers are also made by pool, and wait for the lock.
type claiming = coalesce.Calls[string, acquired, claimed]

const allPools = "" // no pool has this name

func newClaiming(ledger grantLedger, now func() time.Time, panicked rescue.Told) *claiming {
	claim := func(ctx context.Context, pool string, all []acquired) ([]claimed, error) {
		return claimAll(ctx, ledger, now(), all, pool != allPools)
	}
	return &claiming{Call: claim, Alone: hadNoEffect, Lanes: lanes, Fill: fill, Most: atMost, Limit: claimLimit, Panicked: panicked}
}

// claim claims a slot in one call with the claims of other reports.
func (t *together) claim(ctx context.Context, claim acquired) (claimed, error) {
	key := allPools
	if store.IsCaller(claim.Device) { // callers are counted under a lock, for which no device should wait
		key = claim.Pool + "/callers"
	}
	got, err := t.claims.Do(ctx, key, claim)
	if err == nil && got.Status == store.ClaimLocked {
		got, err = t.claims.Do(ctx, claim.Pool, claim)
	}
	return got, err //nolint:wrapcheck // by the caller
}

// recordLimit limits the time of a call that records results or ends tasks to half of handleLimit.
const recordLimit = handleLimit / 2

// newRecording returns Calls that merge the lists of many reports into one call. call must return one outcome
// for each entry, in order.
func newRecording[In, Out any](call func(ctx context.Context, all []In) ([]Out, error), panicked rescue.Told) *coalesce.Calls[struct{}, []In, []Out] {
	record := func(ctx context.Context, _ struct{}, reports [][]In) ([][]Out, error) {
		outcomes, err := call(ctx, slices.Concat(reports...))
		if err != nil {
			return nil, err
		}
		of := make([][]Out, len(reports))
		for i, list := range reports {
			of[i], outcomes = outcomes[:len(list)], outcomes[len(list):]
		}
		return of, nil
	}
	size := func(list []In) int { return len(list) }
	return &coalesce.Calls[struct{}, []In, []Out]{
		Call: record, Alone: hadNoEffect, Lanes: lanes, Fill: fill, Most: atMost, Size: size, Limit: recordLimit, Panicked: panicked,
	}
}

// hadNoEffect reports whether a call that failed with err certainly changed nothing. It returns false after a panic
// in the call, and if err is store.ErrOutcomeUnknown.
func hadNoEffect(err error) bool {
	_, panicked := errors.AsType[*rescue.Panic](err)
	return !panicked && !errors.Is(err, store.ErrOutcomeUnknown)
}

// claimAll claims, in one transaction, the slots that were acquired at most claimAge ago. The rest are late.
func claimAll(ctx context.Context, ledger grantLedger, now time.Time, all []acquired, wait bool) ([]claimed, error) {
	done := make([]claimed, len(all))
	var claims []store.Claim
	var of []int
	for i, a := range all {
		if done[i].late = now.Sub(a.asked) > claimAge; !done[i].late {
			claims, of = append(claims, a.Claim), append(of, i)
		}
	}
	if len(claims) == 0 {
		return done, nil
	}
	outcomes, err := ledger.Claim(ctx, claims, wait)
	if err != nil {
		return nil, err //nolint:wrapcheck // by the caller
	}
	for n, i := range of {
		done[i].ClaimOutcome = outcomes[n]
	}
	return done, nil
}
