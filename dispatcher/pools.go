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
	g, err := d.config.Store.ForceRelease(ctx, pool, slot, f, d.settle)
	if err != nil {
		return store.Grant{}, fmt.Errorf("forced release: %w", err)
	}
	if f.Now {
		d.metrics.forced.WithLabelValues(pool).Inc()
		d.ended(ctx, g, store.ByOperator)
		d.Waiters.Filler.Fill(pool)
	}
	return g, nil
}
