package waiters

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/internal/coalesce"
	"github.com/fleetslots/dispatcher/slots"
)

const (
	serveLimit          = 3 * time.Second // time limit of one call; a slot in a reply after this limit is not claimed
	slotsAtOnce         = 64              // maximum number of requests and leases in one call
	maxConcurrentServes = 2
	secondCallFill      = 32               // if this number of requests and leases wait, a second call begins, in case the first call hangs
	linger              = time.Millisecond // time for which a call waits for more if the call before had several
)

// Slots acquires and releases slots. While a call to a node of Redis is in progress, further calls for the pools of the node wait. They are
// then sent together in the next call.
type Slots struct {
	pools     *Pools
	offers    *Offers
	semaphore Semaphore
	calls     *coalesce.Calls[string, slots.Call, slots.ExchangeResult] // by node
	refreshes *coalesce.Calls[refreshKey, slots.WaiterRefresh, time.Duration]
	log       *slog.Logger
	now       func() time.Time
}

// refreshKey identifies refreshes that can be sent together: they have the same pool and the same report period.
type refreshKey struct {
	pool         string
	reportPeriod time.Duration
}

func newSlots(config Config, pools *Pools, offers *Offers) *Slots {
	s := &Slots{pools: pools, offers: offers, semaphore: config.Semaphore, log: config.Logger, now: config.Now}
	never := func(error) bool { return false } // a failed call may have given slots, so it is not repeated
	size := func(c slots.Call) int { return len(c.Leases) + len(c.Requests) }
	s.calls = &coalesce.Calls[string, slots.Call, slots.ExchangeResult]{
		Call: s.serveCalls, MayRetryAlone: never, MaxConcurrent: maxConcurrentServes, MinWaiting: secondCallFill, MaxSize: slotsAtOnce, Size: size, Linger: linger,
		Timeout: serveLimit, OnPanic: config.Panicked,
	}
	s.refreshes = &coalesce.Calls[refreshKey, slots.WaiterRefresh, time.Duration]{
		Call: func(ctx context.Context, key refreshKey, refreshes []slots.WaiterRefresh) ([]time.Duration, error) {
			return s.semaphore.Refresh(ctx, key.pool, s.paceOfPool(key.pool, key.reportPeriod), refreshes)
		},
		MayRetryAlone: never, MaxConcurrent: maxConcurrentServes, MinWaiting: secondCallFill, MaxSize: slotsAtOnce, Timeout: serveLimit, OnPanic: config.Panicked,
	}
	return s
}

// paceOfPool returns the pace of the pool for devices that report once in reportPeriod. If reportPeriod is shorter than the configured period,
// the configured period applies.
func (s *Slots) paceOfPool(pool string, reportPeriod time.Duration) slots.Pace {
	pace := s.pools.Pace(pool)
	pace.ReportPeriod = max(pace.ReportPeriod, reportPeriod)
	return pace
}

// serveCalls merges the calls with the same pool and report period, sends the merged calls to the semaphore, and notifies the devices to which
// the replies offer slots. It returns one result for each element of callsToMerge.
func (s *Slots) serveCalls(ctx context.Context, _ string, callsToMerge []slots.Call) ([]slots.ExchangeResult, error) {
	calls, indexes := mergeCalls(callsToMerge)
	freed := s.now()
	served := s.semaphore.Serve(ctx, calls)
	for i, c := range calls {
		s.offers.NotifyOfOffers(c.Pool, served[i].Offers, freed)
	}
	each := make([]slots.ExchangeResult, len(callsToMerge))
	for i, c := range callsToMerge {
		each[i] = splitOffOutcomes(&served[indexes[i]], c.Exchange)
	}
	return each, nil
}

// mergeCalls merges the calls of the list callsToMerge that have the same pool and report period. mergedIndexes[i] is the index of the merged
// call that contains callsToMerge[i]. Calls with different periods stay apart, because the queue computes from the period when a device must ask
// again.
func mergeCalls(callsToMerge []slots.Call) (merged []slots.Call, mergedIndexes []int) {
	mergedIndexes = make([]int, len(callsToMerge))
	for i, c := range callsToMerge {
		mergedIndexes[i] = slices.IndexFunc(merged, func(target slots.Call) bool {
			return target.Pool == c.Pool && target.Pace.ReportPeriod == c.Pace.ReportPeriod
		})
		if mergedIndexes[i] < 0 {
			mergedIndexes[i] = len(merged)
			merged = append(merged, slots.Call{Pool: c.Pool, Pace: c.Pace})
		}
		target := &merged[mergedIndexes[i]]
		target.Leases, target.Requests = append(target.Leases, c.Leases...), append(target.Requests, c.Requests...)
	}
	return merged, mergedIndexes
}

// splitOffOutcomes removes the outcomes of one call (own) from the front of merged, and returns them. It must be called for the merged calls in
// their order.
func splitOffOutcomes(merged *slots.ExchangeResult, own slots.Exchange) slots.ExchangeResult {
	if merged.Err != nil {
		return slots.ExchangeResult{Err: merged.Err}
	}
	freed, got := len(own.Leases), len(own.Requests)
	first := slots.ExchangeResult{Freed: merged.Freed[:freed], Acquisitions: merged.Acquisitions[:got]}
	merged.Freed, merged.Acquisitions = merged.Freed[freed:], merged.Acquisitions[got:]
	return first
}

func (s *Slots) sendExchange(ctx context.Context, pool string, reportPeriod time.Duration, requestsAndReleases slots.Exchange) (slots.ExchangeResult, error) {
	call := slots.Call{Pool: pool, Pace: s.paceOfPool(pool, reportPeriod), Exchange: requestsAndReleases}
	done, err := s.calls.Do(ctx, s.semaphore.Node(ctx, pool), call)
	return done, cmp.Or(err, done.Err)
}

// Acquire requests a slot of the pool for a device that reports once in reportPeriod. If reportPeriod is shorter than the configured period,
// the configured period applies.
func (s *Slots) Acquire(ctx context.Context, pool string, reportPeriod time.Duration, request slots.Request) (slots.Acquisition, error) {
	done, err := s.sendExchange(ctx, pool, reportPeriod, slots.Exchange{Requests: []slots.Request{request}})
	if err != nil {
		return slots.Acquisition{}, err
	}
	return done.Acquisitions[0], nil
}

// Refresh records that a device in the queue of the pool has reported, and returns the time after which the device must report again. It
// returns 0 if the caller must call Acquire instead (see slots.Semaphore.Refresh). reportPeriod has the same meaning as in Acquire.
func (s *Slots) Refresh(ctx context.Context, pool string, reportPeriod time.Duration, refresh slots.WaiterRefresh) (reportAfter time.Duration, err error) {
	return s.refreshes.Do(ctx, refreshKey{pool, reportPeriod}, refresh)
}

// Release frees the slots that the leases with these ids hold, and offers them to the next waiters. heldSlot says for each lease whether it held
// a slot.
func (s *Slots) Release(ctx context.Context, pool string, leaseIDs []string) (heldSlot []bool, err error) {
	done, err := s.sendExchange(ctx, pool, 0, slots.Exchange{Leases: leaseIDs})
	return done.Freed, err
}

// ReleaseEndedLeases frees the slots of the leases whose grants were deleted from the ledger, even if ctx has ended. If the semaphore does not
// answer, reconciliation frees them.
func (s *Slots) ReleaseEndedLeases(ctx context.Context, pool string, leaseIDs ...string) {
	if _, err := s.Release(context.WithoutCancel(ctx), pool, leaseIDs); err != nil {
		s.log.WarnContext(ctx, "slots not released; reconciliation releases them", "pool", pool, "leases", len(leaseIDs), "err", err)
	}
}
