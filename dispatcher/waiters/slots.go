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
	serveLimit          = 3 * time.Second // time limit of one call; a slot in a reply after this time is not claimed
	slotsAtOnce         = 64              // maximum number of requests and leases in one call
	maxConcurrentServes = 2
	secondCallFill      = 32 // waiting requests and leases from which a second call begins, in case the first call hangs
)

// Slots acquires and releases slots. Requests and releases for the pools of one node of Redis
// that arrive while a call is in progress are sent together in the next call.
type Slots struct {
	pools     *Pools
	offers    *Offers
	semaphore Semaphore
	calls     *coalesce.Calls[string, slots.Call, slots.ExchangeResult] // by node
	log       *slog.Logger
	now       func() time.Time
}

func newSlots(config Config, pools *Pools, offers *Offers) *Slots {
	s := &Slots{pools: pools, offers: offers, semaphore: config.Semaphore, log: config.Logger, now: config.Now}
	never := func(error) bool { return false } // a failed call may have given slots, so it is not repeated
	size := func(c slots.Call) int { return len(c.Leases) + len(c.Requests) }
	s.calls = &coalesce.Calls[string, slots.Call, slots.ExchangeResult]{
		Call: s.serve, MayRetryAlone: never, MaxConcurrent: maxConcurrentServes, MinWaiting: secondCallFill, MaxSize: slotsAtOnce, Size: size,
		Timeout: serveLimit, OnPanic: config.Panicked,
	}
	return s
}

// serve merges the calls for the same pool and report period into one, sends all calls to the semaphore,
// and sends the offers that they return.
func (s *Slots) serve(ctx context.Context, _ string, some []slots.Call) ([]slots.ExchangeResult, error) {
	calls, indexes := mergeCalls(some)
	freed := s.now()
	served := s.semaphore.Serve(ctx, calls)
	for i, c := range calls {
		s.offers.Send(c.Pool, served[i].Offers, freed)
	}
	each := make([]slots.ExchangeResult, len(some))
	for i, c := range some {
		each[i] = takeOutcomes(&served[indexes[i]], c.Exchange)
	}
	return each, nil
}

// mergeCalls merges the calls for the same pool and report period into one call, with the pace of the
// first. indexes[i] is the index of the merged call that contains some[i]. Calls with different periods
// stay separate, because the queue depends on the period: a parked device does not ask again before
// its wait is over.
func mergeCalls(some []slots.Call) (calls []slots.Call, indexes []int) {
	indexes = make([]int, len(some))
	for i, c := range some {
		indexes[i] = slices.IndexFunc(calls, func(one slots.Call) bool { return one.Pool == c.Pool && one.Pace.ReportPeriod == c.Pace.ReportPeriod })
		if indexes[i] < 0 {
			indexes[i] = len(calls)
			calls = append(calls, slots.Call{Pool: c.Pool, Pace: c.Pace})
		}
		one := &calls[indexes[i]]
		one.Leases, one.Requests = append(one.Leases, c.Leases...), append(one.Requests, c.Requests...)
	}
	return calls, indexes
}

// takeOutcomes removes from the result of a merged call the outcomes of its first part `part`, and returns
// these outcomes.
func takeOutcomes(from *slots.ExchangeResult, part slots.Exchange) slots.ExchangeResult {
	if from.Err != nil {
		return slots.ExchangeResult{Err: from.Err}
	}
	freed, got := len(part.Leases), len(part.Requests)
	first := slots.ExchangeResult{Freed: from.Freed[:freed], Acquisitions: from.Acquisitions[:got]}
	from.Freed, from.Acquisitions = from.Freed[freed:], from.Acquisitions[got:]
	return first
}

// exchange requests and frees slots of the pool. period is as in Acquire.
func (s *Slots) exchange(ctx context.Context, pool string, period time.Duration, content slots.Exchange) (slots.ExchangeResult, error) {
	pace := s.pools.Pace(pool)
	pace.ReportPeriod = max(pace.ReportPeriod, period)
	done, err := s.calls.Do(ctx, s.semaphore.Node(ctx, pool), slots.Call{Pool: pool, Pace: pace, Exchange: content})
	return done, cmp.Or(err, done.Err) //nolint:wrapcheck // the semaphore says what it was doing
}

// Acquire requests a slot of the pool for a device that reports once in period. If period is
// shorter than the configured report period, the configured one applies.
func (s *Slots) Acquire(ctx context.Context, pool string, period time.Duration, request slots.Request) (slots.Acquisition, error) {
	done, err := s.exchange(ctx, pool, period, slots.Exchange{Requests: []slots.Request{request}})
	if err != nil {
		return slots.Acquisition{}, err
	}
	return done.Acquisitions[0], nil
}

// Release frees the slots of leases, and offers the slots to the next waiters. It reports for each
// lease whether it held a slot.
func (s *Slots) Release(ctx context.Context, pool string, leases []string) ([]bool, error) {
	done, err := s.exchange(ctx, pool, 0, slots.Exchange{Leases: leases})
	return done.Freed, err
}

// Return releases the slots of grants that were deleted from the ledger, even if ctx has ended. If
// the semaphore cannot be reached, reconciliation frees the slots.
func (s *Slots) Return(ctx context.Context, pool string, leases ...string) {
	if _, err := s.Release(context.WithoutCancel(ctx), pool, leases); err != nil {
		s.log.WarnContext(ctx, "slots not released; reconciliation releases them", "pool", pool, "leases", len(leases), "err", err)
	}
}
