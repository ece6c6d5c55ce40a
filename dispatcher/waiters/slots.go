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
	serveLimit   = 3 * time.Second // time limit of one call; a slot that is given later is not claimed
	slotsAtOnce  = 64              // maximum number of requests and leases in one call
	servingLanes = 2
	servingFill  = 32 // waiting entries for which a second call begins; so a call that hangs does not block the rest for long
)

// Slots acquires and releases slots. Requests and releases for the pools of one node of Redis
// that arrive while a call is in progress are sent together in the next call.
type Slots struct {
	pools     *Pools
	offers    *Offers
	semaphore Semaphore
	calls     *coalesce.Calls[string, slots.Call, slots.Served] // by node
	log       *slog.Logger
	now       func() time.Time
}

func newSlots(config Config, pools *Pools, offers *Offers) *Slots {
	s := &Slots{pools: pools, offers: offers, semaphore: config.Semaphore, log: config.Logger, now: config.Now}
	never := func(error) bool { return false } // a failed call may have given slots, so it is not repeated
	size := func(c slots.Call) int { return len(c.Leases) + len(c.Requests) }
	s.calls = &coalesce.Calls[string, slots.Call, slots.Served]{
		Call: s.serve, Alone: never, Lanes: servingLanes, Fill: servingFill, Most: slotsAtOnce, Size: size,
		Limit: serveLimit, Panicked: config.Panicked,
	}
	return s
}

// serve merges the calls for the same pool into one, sends all calls, and sends the offers that
// they return.
func (s *Slots) serve(ctx context.Context, _ string, some []slots.Call) ([]slots.Served, error) {
	calls, of := merged(some)
	freed := s.now()
	served := s.semaphore.Serve(ctx, calls)
	for i, c := range calls {
		s.offers.Send(c.Pool, served[i].Offers, freed)
	}
	each := make([]slots.Served, len(some))
	for i, c := range some {
		each[i] = take(&served[of[i]], c.Exchange)
	}
	return each, nil
}

// merged merges the calls for the same pool and report period into one call, with the pace of the
// first. of[i] is the index of the merged call that contains some[i]. Calls with different periods
// stay separate, because the queue depends on the period: a parked device does not ask again before
// its wait is over.
func merged(some []slots.Call) (calls []slots.Call, of []int) {
	of = make([]int, len(some))
	for i, c := range some {
		of[i] = slices.IndexFunc(calls, func(one slots.Call) bool { return one.Pool == c.Pool && one.Pace.Period == c.Pace.Period })
		if of[i] < 0 {
			of[i] = len(calls)
			calls = append(calls, slots.Call{Pool: c.Pool, Pace: c.Pace})
		}
		one := &calls[of[i]]
		one.Leases, one.Requests = append(one.Leases, c.Leases...), append(one.Requests, c.Requests...)
	}
	return calls, of
}

// take removes the outcomes of part, the first part of a merged call, from the result and returns them.
func take(from *slots.Served, part slots.Exchange) slots.Served {
	if from.Err != nil {
		return slots.Served{Err: from.Err}
	}
	freed, got := len(part.Leases), len(part.Requests)
	first := slots.Served{Freed: from.Freed[:freed], Got: from.Got[:got]}
	from.Freed, from.Got = from.Freed[freed:], from.Got[got:]
	return first
}

// exchange requests and frees slots of the pool. period is as in Acquire.
func (s *Slots) exchange(ctx context.Context, pool string, period time.Duration, of slots.Exchange) (slots.Served, error) {
	pace := s.pools.Pace(pool)
	pace.Period = max(pace.Period, period)
	done, err := s.calls.Do(ctx, s.semaphore.Node(ctx, pool), slots.Call{Pool: pool, Pace: pace, Exchange: of})
	return done, cmp.Or(err, done.Err) //nolint:wrapcheck // the semaphore says what it was doing
}

// Acquire requests a slot of the pool for a device that reports once in period. If period is
// shorter than the configured report period, the configured one applies.
func (s *Slots) Acquire(ctx context.Context, pool string, period time.Duration, request slots.Request) (slots.Acquisition, error) {
	done, err := s.exchange(ctx, pool, period, slots.Exchange{Requests: []slots.Request{request}})
	if err != nil {
		return slots.Acquisition{}, err
	}
	return done.Got[0], nil
}

// Release frees the slots of leases and hands them on. It reports for each lease whether it
// held a slot.
func (s *Slots) Release(ctx context.Context, pool string, leases []string) ([]bool, error) {
	done, err := s.exchange(ctx, pool, 0, slots.Exchange{Leases: leases})
	return done.Freed, err
}

// Return releases the slots of grants that are gone from the ledger, even if ctx has ended. If
// the semaphore cannot be reached, reconciliation frees the slots.
func (s *Slots) Return(ctx context.Context, pool string, leases ...string) {
	if _, err := s.Release(context.WithoutCancel(ctx), pool, leases); err != nil {
		s.log.WarnContext(ctx, "a slot stays reserved until it is reconciled", "pool", pool, "leases", len(leases), "err", err)
	}
}
