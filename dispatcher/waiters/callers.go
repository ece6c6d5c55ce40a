package waiters

import (
	"context"

	"github.com/fleetslots/dispatcher/dispatcher/waiters/parked"
)

// callersAtOnce are called when slots of callers fall free.
const callersAtOnce = 64

// CallCallers lets the callers look again, beside the caller of this, that wait first in a
// pool whose callers held as many slots as they may: they stand in no queue meanwhile. One that
// is not called, since a message was lost, looks by itself within seconds.
func (n *Notifier) CallCallers(pool string) {
	n.background.start(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, handoffLimit)
		defer cancel()
		holders, err := n.config.Ledger.NextCallers(ctx, pool, callersAtOnce)
		calls := make([]parked.Call, len(holders))
		for i, holder := range holders {
			calls[i] = parked.Call{Device: holder, Pool: pool}
		}
		if err == nil && len(calls) > 0 {
			err = n.WakeParked(ctx, calls)
		}
		if err != nil {
			n.config.Logger.WarnContext(ctx, "callers look again by themselves", "pool", pool, "err", err)
		}
	})
}
