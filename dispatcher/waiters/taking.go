package waiters

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/internal/coalesce"
	"github.com/fleetslots/dispatcher/slots"
)

const (
	serveLimit   = 3 * time.Second // of one call; a slot that comes later is not claimed any more
	slotsAtOnce  = 64              // requests and leases in one call
	servingLanes = 2
	servingFill  = 32 // so many wait when a second call begins: one that hangs stops no others for long
)

// servings are the requests for slots of the pools of one node of Redis, and the leases to be
// freed there, that come together.
type servings = coalesce.Calls[string, slots.Call, slots.Served]

func newServings(n *Notifier) *servings {
	call := func(ctx context.Context, _ string, some []slots.Call) ([]slots.Served, error) {
		return n.serve(ctx, some), nil
	}
	never := func(error) bool { return false } // a call that failed may have given slots: it is not made again
	size := func(c slots.Call) int { return len(c.Leases) + len(c.Requests) }
	return &servings{
		Call: call, Alone: never, Lanes: servingLanes, Fill: servingFill, Most: slotsAtOnce, Size: size,
		Limit: serveLimit, Panicked: n.config.Panicked,
	}
}

// serve makes one call of those for the same pool, and sends them all.
func (n *Notifier) serve(ctx context.Context, some []slots.Call) []slots.Served {
	calls, of := merged(some)
	since := n.config.Now()
	served := n.config.Semaphore.Serve(ctx, calls)
	for i, c := range calls {
		n.Offer(c.Pool, served[i].Offers, since)
	}
	each := make([]slots.Served, len(some))
	for i, c := range some {
		each[i] = take(&served[of[i]], c.Exchange)
	}
	return each
}

// merged makes one call of those for the same pool, with the first one's pace; of is the
// call that each is part of. A parked device asks no sooner than its wait is over: that is
// part of what the queue goes by.
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

// take takes out what became of the first part of a call.
func take(from *slots.Served, part slots.Exchange) slots.Served {
	if from.Err != nil {
		return slots.Served{Err: from.Err}
	}
	freed, got := len(part.Leases), len(part.Requests)
	first := slots.Served{Freed: from.Freed[:freed], Got: from.Got[:got]}
	from.Freed, from.Got = from.Freed[freed:], from.Got[got:]
	return first
}

// ask is for the pool of a device that reports once in period, or in the usual one if that
// is longer.
func (n *Notifier) ask(ctx context.Context, pool string, period time.Duration, of slots.Exchange) (slots.Served, error) {
	pace := n.Pace(pool)
	pace.Period = max(pace.Period, period)
	done, err := n.servings.Do(ctx, n.config.Semaphore.Node(ctx, pool), slots.Call{Pool: pool, Pace: pace, Exchange: of})
	return done, cmp.Or(err, done.Err) //nolint:wrapcheck // the semaphore says what it was doing
}

// Acquire asks for a slot of a pool, together with others that ask for one or free one. The
// device reports once in period, or in the usual one if that is longer.
func (n *Notifier) Acquire(ctx context.Context, pool string, period time.Duration, request slots.Request) (slots.Acquisition, error) {
	done, err := n.ask(ctx, pool, period, slots.Exchange{Requests: []slots.Request{request}})
	if err != nil {
		return slots.Acquisition{}, err
	}
	return done.Got[0], nil
}

// Release frees slots and hands them on. It says for each lease whether it held one.
func (n *Notifier) Release(ctx context.Context, pool string, leases []string) ([]bool, error) {
	done, err := n.ask(ctx, pool, 0, slots.Exchange{Leases: leases})
	return done.Freed, err
}

// Return is Release for slots of grants that are gone from the ledger, also when the time
// of the caller is up. When the semaphore cannot be reached, reconciliation frees them.
func (n *Notifier) Return(ctx context.Context, pool string, leases ...string) {
	if _, err := n.Release(context.WithoutCancel(ctx), pool, leases); err != nil {
		n.config.Logger.WarnContext(ctx, "a slot stays reserved until it is reconciled", "pool", pool, "leases", len(leases), "err", err)
	}
}
