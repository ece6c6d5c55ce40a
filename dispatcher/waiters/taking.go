package waiters

import (
	"context"
	"time"

	"github.com/fleetslots/dispatcher/internal/coalesce"
	"github.com/fleetslots/dispatcher/slots"
)

const (
	serveLimit  = 3 * time.Second // of one call; a slot that comes later is not claimed any more
	slotsAtOnce = 64              // requests and leases in one call
)

// servings are the requests for slots of one pool, and the leases to be freed there, that
// come together. A parked device asks no sooner than its wait is over: that is part of what
// the queue goes by.
type servings = coalesce.Calls[asked, slots.Exchange, slots.Served]

type asked struct {
	pool   string
	period time.Duration // of the device, if it is longer than the usual one
}

// A call that failed may have given slots: it is not made again.
func never(error) bool { return false }

func newServings(n *Notifier) *servings {
	call := func(ctx context.Context, of asked, some []slots.Exchange) ([]slots.Served, error) {
		var all slots.Exchange
		for _, t := range some {
			all.Leases, all.Requests = append(all.Leases, t.Leases...), append(all.Requests, t.Requests...)
		}
		pace, since := n.Pace(of.pool), n.config.Now()
		pace.Period = max(pace.Period, of.period)
		done, err := n.config.Semaphore.Serve(ctx, of.pool, pace, all)
		n.Offer(of.pool, done.Offers, since)
		if err != nil {
			return nil, err //nolint:wrapcheck // the semaphore says what it was doing
		}
		return shared(some, done), nil
	}
	size := func(t slots.Exchange) int { return len(t.Leases) + len(t.Requests) }
	return &servings{Call: call, Alone: never, Lanes: 1, Most: slotsAtOnce, Size: size, Limit: serveLimit, Panicked: n.config.Panicked}
}

// shared gives each what became of it.
func shared(some []slots.Exchange, done slots.Served) []slots.Served {
	of := make([]slots.Served, len(some))
	for i, t := range some {
		of[i].Freed, done.Freed = done.Freed[:len(t.Leases)], done.Freed[len(t.Leases):]
		of[i].Got, done.Got = done.Got[:len(t.Requests)], done.Got[len(t.Requests):]
	}
	return of
}

// Acquire asks for a slot of a pool, together with others that ask for one or free one. The
// device reports once in period, or in the usual one if that is longer.
func (n *Notifier) Acquire(ctx context.Context, pool string, period time.Duration, request slots.Request) (slots.Acquisition, error) {
	done, err := n.servings.Do(ctx, asked{pool, period}, slots.Exchange{Requests: []slots.Request{request}})
	if err != nil {
		return slots.Acquisition{}, err //nolint:wrapcheck // the semaphore says what it was doing
	}
	return done.Got[0], nil
}

// Release frees slots and hands them on. It says for each lease whether it held one.
func (n *Notifier) Release(ctx context.Context, pool string, leases []string) ([]bool, error) {
	done, err := n.servings.Do(ctx, asked{pool: pool}, slots.Exchange{Leases: leases})
	return done.Freed, err //nolint:wrapcheck // the semaphore says what it was doing
}

// Return is Release for slots of grants that are gone from the ledger, also when the time
// of the caller is up. When the semaphore cannot be reached, reconciliation frees them.
func (n *Notifier) Return(ctx context.Context, pool string, leases ...string) {
	if _, err := n.Release(context.WithoutCancel(ctx), pool, leases); err != nil {
		n.config.Logger.WarnContext(ctx, "a slot stays reserved until it is reconciled", "pool", pool, "leases", len(leases), "err", err)
	}
}
