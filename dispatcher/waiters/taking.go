package waiters

import (
	"context"
	"time"

	"github.com/fleetslots/dispatcher/internal/coalesce"
	"github.com/fleetslots/dispatcher/slots"
)

const (
	acquireLimit = 3 * time.Second // of one call; a slot that comes later is not claimed any more
	releaseLimit = 2 * time.Second
	slotsAtOnce  = 64 // requests or leases in one call
)

// acquires are the requests for slots of one pool that come together. A parked device
// asks no sooner than its wait is over: that is part of what the queue goes by.
type acquires = coalesce.Calls[asked, slots.Request, slots.Acquisition]

type asked struct {
	pool   string
	period time.Duration // of the device, if it is longer than the usual one
}

// A call that failed may have given slots: it is not made again.
func never(error) bool { return false }

func newAcquires(n *Notifier) *acquires {
	call := func(ctx context.Context, of asked, requests []slots.Request) ([]slots.Acquisition, error) {
		pace, since := n.Pace(of.pool), n.config.Now()
		pace.Period = max(pace.Period, of.period)
		got, offers, err := n.config.Semaphore.Acquire(ctx, of.pool, pace, requests)
		n.Offer(of.pool, offers, since)
		return got, err //nolint:wrapcheck // the semaphore says what it was doing
	}
	return &acquires{Call: call, Alone: never, Lanes: 1, Most: slotsAtOnce, Limit: acquireLimit, Panicked: n.config.Panicked}
}

// Acquire asks for a slot of a pool, together with others that ask for one. The device
// reports once in period, or in the usual one if that is longer.
func (n *Notifier) Acquire(ctx context.Context, pool string, period time.Duration, request slots.Request) (slots.Acquisition, error) {
	return n.acquires.Do(ctx, asked{pool, period}, request) //nolint:wrapcheck // the semaphore says what it was doing
}

// releases are the leases of one pool whose slots are freed together.
type releases = coalesce.Calls[string, []string, []bool]

func newReleases(n *Notifier) *releases {
	call := func(ctx context.Context, pool string, together [][]string) ([][]bool, error) {
		var leases []string
		for _, some := range together {
			leases = append(leases, some...)
		}
		since := n.config.Now()
		freed, offers, err := n.config.Semaphore.Release(ctx, pool, n.Pace(pool), leases)
		if len(offers) == 0 { // what is offered is free to nobody else
			n.Pools.freed(pool)
		}
		n.Offer(pool, offers, since)
		if err != nil {
			return nil, err //nolint:wrapcheck // the semaphore says what it was doing
		}
		of := make([][]bool, len(together))
		for i, some := range together {
			of[i], freed = freed[:len(some)], freed[len(some):]
		}
		return of, nil
	}
	size := func(leases []string) int { return len(leases) }
	return &releases{Call: call, Alone: never, Lanes: 1, Most: slotsAtOnce, Size: size, Limit: releaseLimit, Panicked: n.config.Panicked}
}

// Release frees slots and hands them on. It says for each lease whether it held one.
func (n *Notifier) Release(ctx context.Context, pool string, leases []string) ([]bool, error) {
	return n.releases.Do(ctx, pool, leases) //nolint:wrapcheck // the semaphore says what it was doing
}

// Return is Release for slots of grants that are gone from the ledger, also when the time
// of the caller is up. When the semaphore cannot be reached, reconciliation frees them.
func (n *Notifier) Return(ctx context.Context, pool string, leases ...string) {
	if _, err := n.Release(context.WithoutCancel(ctx), pool, leases); err != nil {
		n.config.Logger.WarnContext(ctx, "a slot stays reserved until it is reconciled", "pool", pool, "leases", len(leases), "err", err)
	}
}
