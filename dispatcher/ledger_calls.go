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

// The sum of claimAge and claimLimit is well below the age of an orphan (a slot without a grant), so reconciliation never frees a slot
// while it is being claimed.
const (
	claimAge   = 3 * time.Second // maximum time between the acquisition of a slot and the sending of its claim
	claimLimit = 5 * time.Second // maximum duration of a claim
)

// viewLimit is the time limit of one ledger call that reads the views of devices: half of
// handleLimit.
const viewLimit = handleLimit / 2

// Limits of the coalesced calls of each kind.
const (
	maxConcurrentCalls = 2  // maximum number of concurrent calls
	secondCallFill     = 32 // a second call begins while one is in progress if this number of entries wait
	maxCallEntries     = 64 // maximum number of entries in one call
)

// ledgerCalls combines the ledger calls of concurrent reports into fewer calls.
type ledgerCalls struct {
	views        *viewCalls
	results      *coalesce.Calls[struct{}, []store.Result, []store.ResultOutcome]
	claims       *claimCalls
	suppressions *coalesce.Calls[struct{}, []store.Suppression, []bool]
}

// newLedgerCalls returns ledgerCalls that call ledger. settle decides the states of tasks whose grants end. onGranted is called with the
// holders of new grants. now is used only for elapsed time.
func newLedgerCalls(ledger Ledger, settle store.Settle, onGranted grantedFunc, now func() time.Time, panicked rescue.PanicHandler) ledgerCalls {
	record := func(ctx context.Context, all []store.Result) ([]store.ResultOutcome, error) {
		return ledger.RecordResults(ctx, all, settle), nil
	}
	end := func(ctx context.Context, all []store.Suppression) ([]bool, error) { return ledger.Suppress(ctx, all) }
	return ledgerCalls{
		views: newViewCalls(ledger, panicked), results: newRecordCalls(record, panicked),
		claims: newClaimCalls(ledger, onGranted, now, panicked), suppressions: newRecordCalls(end, panicked),
	}
}

// acquiredSlot is a slot that the semaphore assigned, with the claim (the grant to be committed to
// the ledger) for it.
type acquiredSlot struct {
	store.Claim
	asked time.Time // time of the request to the semaphore
}

// claimResult is the outcome of the claim of an acquired slot.
type claimResult struct {
	store.ClaimOutcome
	late bool // the slot was not claimed, because it was acquired more than claimAge ago
}

// viewCalls reads many devices in one call. Its key says what is read: everything that the reports of the devices need if the key is true,
// only the registrations if it is false.
type viewCalls = coalesce.Calls[fullView, string, store.DeviceView]

// fullView is the key of viewCalls: true reads everything that the reports need, false only the registrations.
type fullView bool

// newViewCalls returns viewCalls that read from ledger.
func newViewCalls(ledger viewLedger, panicked rescue.PanicHandler) *viewCalls {
	view := func(ctx context.Context, all fullView, names []string) ([]store.DeviceView, error) {
		if all {
			return ledger.DeviceViews(ctx, names)
		}
		return ledger.DeviceRegistrations(ctx, names)
	}
	return &viewCalls{Call: view, MayRetryAlone: hadNoEffect, MaxConcurrent: maxConcurrentCalls, MinWaiting: secondCallFill, MaxSize: maxCallEntries, Timeout: viewLimit, OnPanic: panicked}
}

// claimCalls claims slots of all pools in one call. If a claim finds its pool locked, it is repeated in a call for this pool alone, which
// waits for the lock. So a locked pool does not delay other pools. Claims of callers are never part of the call for all pools: each pool
// has a call of its own for them, which waits for the lock.
type claimCalls = coalesce.Calls[string, acquiredSlot, claimResult]

const allPools = "" // no pool has this name

// grantedFunc is called with the holders of grants that were just committed.
type grantedFunc func(ctx context.Context, holders []string)

// newClaimCalls returns claimCalls that write into ledger. onGranted is called with the holders of new grants. now is used only for elapsed
// time.
func newClaimCalls(ledger grantLedger, onGranted grantedFunc, now func() time.Time, panicked rescue.PanicHandler) *claimCalls {
	claim := func(ctx context.Context, pool string, all []acquiredSlot) ([]claimResult, error) {
		done, err := claimAll(ctx, ledger, now(), all, pool != allPools)
		var holders []string
		for _, r := range done {
			if r.Status == store.ClaimGranted {
				holders = append(holders, r.Grant.Device)
			}
		}
		if len(holders) > 0 {
			onGranted(ctx, holders)
		}
		return done, err
	}
	return &claimCalls{Call: claim, MayRetryAlone: hadNoEffect, MaxConcurrent: maxConcurrentCalls, MinWaiting: secondCallFill, MaxSize: maxCallEntries, Timeout: claimLimit, OnPanic: panicked}
}

// claim claims slot in one call with the claims of other reports.
func (t *ledgerCalls) claim(ctx context.Context, slot acquiredSlot) (claimResult, error) {
	key := allPools
	if store.IsCaller(slot.Device) { // callers are counted under a lock, for which no device should wait
		key = slot.Pool + "/callers"
	}
	got, err := t.claims.Do(ctx, key, slot)
	if err == nil && got.Status == store.ClaimLocked {
		got, err = t.claims.Do(ctx, slot.Pool, slot)
	}
	return got, err //nolint:wrapcheck // by the caller
}

// recordLimit is the time limit of a ledger call that records results or ends tasks: half of
// handleLimit.
const recordLimit = handleLimit / 2

// newRecordCalls returns Calls that merge the lists of many reports into one call. call must return one outcome
// for each entry, in order.
func newRecordCalls[In, Out any](call func(ctx context.Context, all []In) ([]Out, error), panicked rescue.PanicHandler) *coalesce.Calls[struct{}, []In, []Out] {
	record := func(ctx context.Context, _ struct{}, reports [][]In) ([][]Out, error) {
		outcomes, err := call(ctx, slices.Concat(reports...))
		if err != nil {
			return nil, err
		}
		perReport := make([][]Out, len(reports))
		for i, list := range reports {
			perReport[i], outcomes = outcomes[:len(list)], outcomes[len(list):]
		}
		return perReport, nil
	}
	size := func(list []In) int { return len(list) }
	return &coalesce.Calls[struct{}, []In, []Out]{
		Call: record, MayRetryAlone: hadNoEffect, MaxConcurrent: maxConcurrentCalls, MinWaiting: secondCallFill, MaxSize: maxCallEntries, Size: size, Timeout: recordLimit, OnPanic: panicked,
	}
}

// hadNoEffect reports whether a call that failed with err certainly changed nothing. It returns false after a panic
// in the call, and if err is store.ErrOutcomeUnknown.
func hadNoEffect(err error) bool {
	_, panicked := errors.AsType[*rescue.Panic](err)
	return !panicked && !errors.Is(err, store.ErrOutcomeUnknown)
}

// claimAll commits, in one transaction, the grants for the slots in acquired. It does not claim a slot that was acquired more than claimAge
// before now: the result of this slot is marked as late. If waitForLock is true, claimAll waits for locked pools. It returns one result for
// each slot, in the order of acquired.
func claimAll(ctx context.Context, ledger grantLedger, now time.Time, acquired []acquiredSlot, waitForLock bool) ([]claimResult, error) {
	done := make([]claimResult, len(acquired))
	var claims []store.Claim
	var indexes []int
	for i, a := range acquired {
		if done[i].late = now.Sub(a.asked) > claimAge; !done[i].late {
			claims, indexes = append(claims, a.Claim), append(indexes, i)
		}
	}
	if len(claims) == 0 {
		return done, nil
	}
	outcomes, err := ledger.Claim(ctx, claims, waitForLock)
	if err != nil {
		return nil, err //nolint:wrapcheck // by the caller
	}
	for n, i := range indexes {
		done[i].ClaimOutcome = outcomes[n]
	}
	return done, nil
}
