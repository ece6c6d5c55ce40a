package upkeep

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

const (
	idleEvery = 900 * time.Millisecond // minimum time between two counts, over all replicas
	idleShare = 20                     // counting takes at most 1/idleShare of the time
)

// idleSchedule records when this replica counted idle slots last, and when it may count next.
type idleSchedule struct {
	mu         sync.Mutex
	last, next time.Time
}

// CountIdle adds up the idle time in slot-seconds: the time during which slots were free although devices could
// have used them. For each pool it counts the devices that could be granted a task, hold no slot, and reported
// within three report periods, but not more than there are free slots. It does not count callers.
//
// It may be called at any rate on each replica: the ledger assigns the elapsed time to the first replica that
// asks, so the sum over all replicas is correct. A call that fails counts nothing.
func (k *Keeper) CountIdle(ctx context.Context) error {
	started := k.config.Now()
	since, mayCount := k.idle.beginCount(started)
	if !mayCount {
		return nil
	}
	defer func() { k.idle.endCount(started, k.config.Now()) }()
	open, err := k.config.Ledger.OpenPools(ctx)
	if err != nil || len(open) == 0 || since == 0 {
		return err //nolint:wrapcheck // says what it read
	}
	taken, err := k.config.Ledger.TakeIdleTime(ctx, idleEvery)
	if err != nil || taken == 0 {
		return err //nolint:wrapcheck // says what it took
	}
	// Count at most the time since this replica's last call: it is not known whether slots were idle
	// before that call.
	elapsed := min(taken, since)
	for _, pool := range open {
		idle, err := k.config.Ledger.CountWaitingDevices(ctx, pool.Name, 3*k.config.ReportPeriod+store.SeenPrecision, pool.Free)
		if err != nil {
			return fmt.Errorf("counting idle slots: %w", err)
		}
		k.metrics.idle.WithLabelValues(pool.Name).Add(float64(idle) * elapsed.Seconds())
	}
	return nil
}

// beginCount reports whether to count now, and returns the time since the last count. If sinceLast is 0, this is the first count.
func (l *idleSchedule) beginCount(now time.Time) (sinceLast time.Duration, mayCount bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Before(l.next) {
		return 0, false
	}
	if !l.last.IsZero() {
		sinceLast = now.Sub(l.last)
	}
	l.last = now
	return sinceLast, true
}

// endCount records a count that lasted from started to ended, and when the next one may begin.
func (l *idleSchedule) endCount(started, ended time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = ended.Add((idleShare - 1) * ended.Sub(started))
}
