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

// claimAge + claimLimit is less than upkeep.orphanAge, the age at which reconciliation frees a slot without a grant. So reconciliation never
// frees a slot while the slot is being claimed.
const (
	claimAge   = 3 * time.Second // maximum time between the acquisition of a slot and the sending of its claim
	claimLimit = 5 * time.Second // maximum duration of a claim
)

// callLimit is the time limit of one ledger call that reads devices, records results or ends tasks.
const callLimit = handleLimit / 2

// These limits apply to the coalesced ledger calls of each kind.
const (
	maxConcurrentCalls = 2  // maximum number of concurrent calls
	secondCallFill     = 32 // if this number of entries wait, a second call begins although one is in progress
	maxCallEntries     = 64 // maximum number of entries in one call

	linger = time.Millisecond // time for which a call waits for more entries if the call before had several
)

// ledgerCalls combines the ledger calls of concurrent reports.
type ledgerCalls struct {
	views        *viewCalls
	results      *coalesce.Calls[struct{}, []store.Result, []store.ResultOutcome]
	claims       *claimCalls
	suppressions *coalesce.Calls[struct{}, []store.Suppression, []bool]
}

// newLedgerCalls returns ledgerCalls that call ledger. decideState decides the next state of a task whose grant ended. onGranted is called with
// the holders of new grants. onPanic handles a panic of a call. now is used only for elapsed time.
func newLedgerCalls(ledger Store, decideState store.DecideTaskState, onGranted func(ctx context.Context, holders []string), now func() time.Time, onPanic rescue.PanicHandler) ledgerCalls {
	record := func(ctx context.Context, all []store.Result) ([]store.ResultOutcome, error) {
		return ledger.RecordResults(ctx, all, decideState), nil
	}
	end := func(ctx context.Context, all []store.Suppression) ([]bool, error) { return ledger.Suppress(ctx, all) }
	return ledgerCalls{
		views: newViewCalls(ledger, onPanic), results: newMergingCalls(record, onPanic),
		claims: newClaimCalls(ledger, onGranted, now, onPanic), suppressions: newMergingCalls(end, onPanic),
	}
}

// acquiredSlot is a slot that the semaphore assigned, with the claim that commits its grant.
type acquiredSlot struct {
	store.Claim
	asked time.Time // time of the request to the semaphore
}

type claimResult struct {
	store.ClaimOutcome
	late bool // the slot was not claimed, because it was acquired more than claimAge ago
}

// viewCalls reads the views of many devices in one call. The key, a fullView, selects what is read.
type viewCalls = coalesce.Calls[fullView, string, store.DeviceView]

// fullView selects everything that reports need (true) or only the registrations of devices (false).
type fullView bool

func newViewCalls(ledger reportLedger, onPanic rescue.PanicHandler) *viewCalls {
	view := func(ctx context.Context, all fullView, names []string) ([]store.DeviceView, error) {
		if all {
			return ledger.DeviceViews(ctx, names)
		}
		return ledger.DeviceRegistrations(ctx, names)
	}
	return &viewCalls{Call: view, MayRetryAlone: certainlyChangedNothing, MaxConcurrent: maxConcurrentCalls, MinWaiting: secondCallFill, MaxSize: maxCallEntries, Linger: linger, Timeout: callLimit, OnPanic: onPanic}
}

// claimCalls claims slots of all pools in one call, which waits for no lock. A claim that finds its pool locked is repeated in a second call.
// The second call is for this pool alone and waits for the lock, so a locked pool does not delay other pools. Claims of callers always go
// into a separate call for their pool.
type claimCalls = coalesce.Calls[string, acquiredSlot, claimResult]

const allPools = "" // no pool has this name

func newClaimCalls(ledger reportLedger, onGranted func(ctx context.Context, holders []string), now func() time.Time, onPanic rescue.PanicHandler) *claimCalls {
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
	return &claimCalls{Call: claim, MayRetryAlone: certainlyChangedNothing, MaxConcurrent: maxConcurrentCalls, MinWaiting: secondCallFill, MaxSize: maxCallEntries, Linger: linger, Timeout: claimLimit, OnPanic: onPanic}
}

func (c *ledgerCalls) claim(ctx context.Context, slot acquiredSlot) (claimResult, error) {
	key := allPools
	if store.IsCaller(slot.Device) { // a claim of a caller takes a lock, and no device should wait for it
		key = slot.Pool + "/callers"
	}
	got, err := c.claims.Do(ctx, key, slot)
	if err == nil && got.Status == store.ClaimLocked {
		got, err = c.claims.Do(ctx, slot.Pool, slot)
	}
	return got, err
}

// newMergingCalls returns Calls that merge the lists of concurrent reports into one list, and pass it to call. call must return one outcome
// for each entry, in order.
func newMergingCalls[In, Out any](call func(ctx context.Context, all []In) ([]Out, error), onPanic rescue.PanicHandler) *coalesce.Calls[struct{}, []In, []Out] {
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
		Call: record, MayRetryAlone: certainlyChangedNothing, MaxConcurrent: maxConcurrentCalls, MinWaiting: secondCallFill, MaxSize: maxCallEntries, Linger: linger, Size: size, Timeout: callLimit, OnPanic: onPanic,
	}
}

// certainlyChangedNothing reports whether a failed call has certainly changed nothing in the ledger. callErr is the error of the call.
func certainlyChangedNothing(callErr error) bool {
	_, panicked := errors.AsType[*rescue.Panic](callErr)
	return !panicked && !errors.Is(callErr, store.ErrOutcomeUnknown)
}

// claimAll commits, in one transaction, the grants for the slots of the list acquired, and returns one result for each. A slot that was
// acquired more than claimAge before the time now is not claimed, but marked as late. If waitForLock is true, claimAll waits for locked pools.
func claimAll(ctx context.Context, ledger reportLedger, now time.Time, acquired []acquiredSlot, waitForLock bool) ([]claimResult, error) {
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
		return nil, err
	}
	for n, i := range indexes {
		done[i].ClaimOutcome = outcomes[n]
	}
	return done, nil
}
