package upkeep

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

const (
	idleEvery = 900 * time.Millisecond // the least time between two countings, by all replicas
	idleShare = 20                     // looking takes at most one part in so many of the time
)

// idleLooks are when this replica looked for idle slots, and does next.
type idleLooks struct {
	mu         sync.Mutex
	last, next time.Time
}

// CountIdle adds up the slot-seconds that were free while somebody could have
// used them: as many of a pool's free slots as devices wait that were seen
// within three report periods. It may be called as often as one likes, on each
// replica: time that has passed goes to the one that asks first, so that the sum
// over all replicas is right. A look that fails counts nothing.
func (k *Keeper) CountIdle(ctx context.Context) error {
	started := k.config.Now()
	since, due := k.idle.begin(started)
	if !due {
		return nil
	}
	defer func() { k.idle.end(started, k.config.Now()) }()
	open, err := k.config.Ledger.OpenPools(ctx)
	if err != nil || len(open) == 0 || since == 0 {
		return err //nolint:wrapcheck // says what it read
	}
	taken, err := k.config.Ledger.TakeIdleTime(ctx, idleEvery)
	if err != nil || taken == 0 {
		return err //nolint:wrapcheck // says what it took
	}
	// More was not looked at: no slot may have been idle before.
	elapsed := min(taken, since)
	for _, pool := range open {
		idle, err := k.config.Ledger.WaitingHere(ctx, pool.Name, 3*k.config.ReportPeriod+store.SeenWithin, pool.Free)
		if err != nil {
			return fmt.Errorf("counting idle slots: %w", err)
		}
		k.metrics.idle.WithLabelValues(pool.Name).Add(float64(idle) * elapsed.Seconds())
	}
	return nil
}

// begin says whether to look now, and how long ago the last look was; 0: this
// is the first.
func (l *idleLooks) begin(now time.Time) (since time.Duration, due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Before(l.next) {
		return 0, false
	}
	if !l.last.IsZero() {
		since = now.Sub(l.last)
	}
	l.last = now
	return since, true
}

func (l *idleLooks) end(started, ended time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = ended.Add((idleShare - 1) * ended.Sub(started))
}
