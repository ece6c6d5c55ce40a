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

// claimAge bounds the time between the acquire of a slot and the sending of its
// claim, claimLimit that of the claim: together well below the age of an
// orphan, so that reconciliation never frees a slot under a claim.
const (
	claimAge   = 3 * time.Second
	claimLimit = 5 * time.Second
)

// viewLimit bounds a reading of devices: half of what a report has.
const viewLimit = handleLimit / 2

// How many calls of a kind are under way at once, and what goes in one.
const (
	lanes  = 2
	fill   = 32 // a second call begins beside one that is under way when so many wait
	atMost = 64
)

// together is what the reports of many devices ask of the ledger in one call.
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

// acquired is a slot that the semaphore gave, with what it is to be claimed for.
type acquired struct {
	store.Claim
	asked time.Time // when the semaphore was asked for it
}

// claimed is what became of it.
type claimed struct {
	store.ClaimOutcome
	late bool // it was not claimed: too much time had passed
}

// viewing reads devices together, whatever they ask for: who they are, or all that
// concerns their reports.
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

// claiming is for all pools together; what was found locked is claimed by pool, and
// waits, so that one that is locked holds up no other. So are the claims of callers.
type claiming = coalesce.Calls[string, acquired, claimed]

const allPools = "" // no pool has this name

func newClaiming(ledger grantLedger, now func() time.Time, panicked rescue.Told) *claiming {
	claim := func(ctx context.Context, pool string, all []acquired) ([]claimed, error) {
		return claimAll(ctx, ledger, now(), all, pool != allPools)
	}
	return &claiming{Call: claim, Alone: hadNoEffect, Lanes: lanes, Fill: fill, Most: atMost, Limit: claimLimit, Panicked: panicked}
}

// claim claims a slot, in one call with the claims of other reports.
func (t *together) claim(ctx context.Context, claim acquired) (claimed, error) {
	key := allPools
	if store.IsCaller(claim.Device) { // callers are counted under a lock, for which no device is to wait
		key = claim.Pool + "/callers"
	}
	got, err := t.claims.Do(ctx, key, claim)
	if err == nil && got.Status == store.ClaimLocked {
		got, err = t.claims.Do(ctx, claim.Pool, claim)
	}
	return got, err //nolint:wrapcheck // by the caller
}

// recordLimit bounds a call that records results or ends tasks: half of what a report has.
const recordLimit = handleLimit / 2

// newRecording returns Calls that make one call of the lists of many reports. call returns one outcome for
// each entry, in order.
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

// hadNoEffect is certain of a call that failed; not after a panic in it.
func hadNoEffect(err error) bool {
	_, panicked := errors.AsType[*rescue.Panic](err)
	return !panicked && !errors.Is(err, store.ErrOutcomeUnknown)
}

// claimAll claims in one transaction what is not too old by now.
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
