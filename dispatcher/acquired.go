package dispatcher

import (
	"context"
	"time"

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

func newViewing(ledger Ledger, panicked rescue.Told) *convoys[string, store.View] {
	view := func(ctx context.Context, names []string) ([]store.View, error) { return ledger.Views(ctx, names) }
	c := newConvoys(view, viewLanes, viewsAtMost, viewLimit)
	c.panicked = panicked
	return c
}

func newClaiming(ledger Ledger, now func() time.Time, panicked rescue.Told) *convoys[acquired, claimed] {
	claim := func(ctx context.Context, all []acquired) ([]claimed, error) { return claimAll(ctx, ledger, now(), all) }
	c := newConvoys(claim, claimLanes, claimsAtMost, claimLimit)
	c.panicked = panicked
	return c
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
		return nil, err //nolint:wrapcheck // by the one who rides
	}
	for n, i := range of {
		done[i].ClaimOutcome = outcomes[n]
	}
	return done, nil
}
