package upkeep

import (
	"context"
	"fmt"

	"github.com/fleetslots/dispatcher/internal/deadline"
	"github.com/fleetslots/dispatcher/store"
)

// registerPool records that the ledger has the pool, and creates its metrics.
func (k *Keeper) registerPool(pool store.Pool) {
	if k.config.Waiters.Pools.Add(pool.Name, pool.Sleep) {
		k.config.Meters.InitPool(pool.Name)
	}
}

func (k *Keeper) forgetPools(poolNames map[string]bool) {
	for pool := range poolNames {
		k.config.Waiters.Pools.Remove(pool)
		k.config.Meters.ForgetPool(pool)
	}
}

// ForgetPool removes a deleted pool from the semaphore. If data of the pool stays in Redis, it is harmless, because the ledger makes no grants
// in the pool. Other replicas forget the pool in their next reconciliation.
func (k *Keeper) ForgetPool(ctx context.Context, pool string) error {
	k.forgetPools(map[string]bool{pool: true})
	if err := k.config.Semaphore.Forget(ctx, pool); err != nil {
		return fmt.Errorf("forgetting pool %s: %w", pool, err)
	}
	return nil
}

// reservedShare is the part of the remaining time of a request that one call of DevicesWithReservedSlot may take. It is small, because a page
// shows several pools.
const reservedShare = 0.25

// DevicesWithReservedSlot returns the devices for which a slot of the pool is reserved. The device whose offer ends soonest is first. If the
// semaphore does not answer in time, DevicesWithReservedSlot returns none.
func (k *Keeper) DevicesWithReservedSlot(ctx context.Context, pool string) (devices []string) {
	ctx, cancel := deadline.Share(ctx, reservedShare)
	defer cancel()
	snapshot, err := k.config.Semaphore.Snapshot(ctx, pool)
	if err != nil {
		k.config.Logger.WarnContext(ctx, "slots shown without the reserved ones", "pool", pool, "err", err)
		return nil
	}
	held := make(map[string]bool, len(snapshot.Leases))
	for _, l := range snapshot.Leases {
		held[l.Device] = true
	}
	for _, o := range snapshot.Reserved {
		if !held[o.Device] && o.Left > 0 {
			devices = append(devices, o.Device)
		}
	}
	return devices
}
