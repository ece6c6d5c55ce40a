package dispatcher

import (
	"context"
	"fmt"

	"github.com/fleetslots/dispatcher/store"
)

// ForceRelease takes a slot back from its holder and returns its grant; with
// f.Now it is free at once, whatever its device still does. store.ErrNotFound:
// nobody holds it.
func (d *Dispatcher) ForceRelease(ctx context.Context, pool string, slot int, f store.Force) (store.Grant, error) {
	g, err := d.store.ForceRelease(ctx, pool, slot, f, d.settle)
	if err != nil {
		return store.Grant{}, fmt.Errorf("forced release: %w", err)
	}
	if f.Now {
		d.metrics.forced.WithLabelValues(pool).Inc()
		d.ended(ctx, g, store.ByOperator)
		d.HandOn(pool)
	}
	return g, nil
}

// ForgetPool removes a deleted pool from the semaphore. What is left when that
// fails harms nothing: the ledger grants nothing of such a pool.
func (d *Dispatcher) ForgetPool(ctx context.Context, pool string) error {
	d.lines.remove(pool)
	d.searches.remove(pool)
	if err := d.semaphore.Forget(ctx, pool); err != nil {
		return fmt.Errorf("forgetting pool %s: %w", pool, err)
	}
	return nil
}

// Reserved are the devices for which a slot of the pool is kept, those first
// whose time is over first; none when the semaphore does not say.
func (d *Dispatcher) Reserved(ctx context.Context, pool string) []string {
	snapshot, err := d.semaphore.Snapshot(ctx, pool)
	if err != nil {
		d.log.WarnContext(ctx, "slots shown without those that are kept", "pool", pool, "err", err)
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
