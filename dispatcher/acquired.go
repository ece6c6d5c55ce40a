package dispatcher

import (
	"context"
	"errors"
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

// How many readings, and claims in one pool, are under way at once, and how many
// reports share one.
const (
	viewLanes, viewsAtMost   = 4, 64
	claimLanes, claimsAtMost = 2, 64
)

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

// viewing reads devices together, whatever they ask for.
type viewing = coalesce.Calls[struct{}, string, store.View]

func newViewing(ledger Ledger, panicked rescue.Told) *viewing {
	view := func(ctx context.Context, _ struct{}, names []string) ([]store.View, error) {
		return ledger.Views(ctx, names)
	}
	return &viewing{Call: view, Alone: hadNoEffect, Lanes: viewLanes, Most: viewsAtMost, Limit: viewLimit, Panicked: panicked}
}

// claiming is by pool: one that is locked holds up no other.
type claiming = coalesce.Calls[string, acquired, claimed]

func newClaiming(ledger Ledger, now func() time.Time, panicked rescue.Told) *claiming {
	claim := func(ctx context.Context, _ string, all []acquired) ([]claimed, error) {
		return claimAll(ctx, ledger, now(), all)
	}
	return &claiming{Call: claim, Alone: hadNoEffect, Lanes: claimLanes, Most: claimsAtMost, Limit: claimLimit, Panicked: panicked}
}

// hadNoEffect is certain of a call that failed; not after a panic in it.
func hadNoEffect(err error) bool {
	_, panicked := errors.AsType[*rescue.Panic](err)
	return !panicked && !errors.Is(err, store.ErrOutcomeUnknown)
}

// claimAll claims in one transaction what is not too old by now.
func claimAll(ctx context.Context, ledger Ledger, now time.Time, all []acquired) ([]claimed, error) {
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
	outcomes, err := ledger.Claim(ctx, claims)
	if err != nil {
		return nil, err //nolint:wrapcheck // by the caller
	}
	for n, i := range of {
		done[i].ClaimOutcome = outcomes[n]
	}
	return done, nil
}
