package upkeep

import (
	"context"
	"fmt"

	"github.com/fleetslots/dispatcher/internal/deadline"
)

// show notes that the ledger has a pool.
func (k *Keeper) show(pool string) {
	if k.config.Waiters.Pools.Add(pool) {
		k.config.Meters.Show(pool)
	}
}

// forget lets this replica forget pools that some replica deleted.
func (k *Keeper) forget(pools map[string]bool) {
	for pool := range pools {
		k.config.Waiters.Pools.Remove(pool)
		k.config.Meters.Forget(pool)
	}
}

// ForgetPool removes a deleted pool from the semaphore. The rest harms nothing when that
// fails: the ledger grants nothing of such a pool. Other replicas forget it
// with their next reconciliation.
func (k *Keeper) ForgetPool(ctx context.Context, pool string) error {
	k.forget(map[string]bool{pool: true})
	if err := k.config.Semaphore.Forget(ctx, pool); err != nil {
		return fmt.Errorf("forgetting pool %s: %w", pool, err)
	}
	return nil
}

// reservedShare is the part of the time left that Reserved waits: a page shows several pools.
const reservedShare = 0.25

// Reserved returns the devices for which a slot of the pool is kept, those whose time is over
// soonest first; none if the semaphore does not answer, or not in time.
func (k *Keeper) Reserved(ctx context.Context, pool string) []string {
	ctx, cancel := deadline.Share(ctx, reservedShare)
	defer cancel()
	snapshot, err := k.config.Semaphore.Snapshot(ctx, pool)
	if err != nil {
		k.config.Logger.WarnContext(ctx, "slots shown without those that are kept", "pool", pool, "err", err)
		return nil
	}
	held := make(map[string]bool, len(snapshot.Leases))
	for _, l := range snapshot.Leases {
		held[l.Device] = true
	}
	var devices []string
	for _, o := range snapshot.Reserved {
		if !held[o.Device] && o.Left > 0 {
			devices = append(devices, o.Device)
		}
	}
	return devices
}
