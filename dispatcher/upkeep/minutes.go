package upkeep

import (
	"context"
	"fmt"
	"sync"

	"github.com/fleetslots/dispatcher/store"
)

// minuteLedger counts the events of each pool by minute, and adds seals (hashes that show a later change of an event).
type minuteLedger interface {
	ReadEventPosition(ctx context.Context, readUpTo int64) (store.EventPosition, error)
	EventsComplete(ctx context.Context, position store.EventPosition) (bool, error)
	CountMinutes(ctx context.Context, lastEvent int64, limit int) (int, error)
	SealEvents(ctx context.Context, lastEvent int64, limit int) (int, error)
}

// minuteProgress records which events of the log are counted, as far as this replica knows.
type minuteProgress struct {
	mu          sync.Mutex
	counted     int64               // all events with id <= counted are counted
	position    store.EventPosition // the next count ends at this position; valid if hasPosition is true
	hasPosition bool
}

// minutesPart is the number of events that one transaction counts.
const minutesPart = 20_000

const (
	eventsPerSeal = 1000 // maximum number of events in one sealed block
	sealsPerPass  = 50   // maximum number of blocks that one call of SealEvents seals: if 100,000 events wait, it reads a part of them
)

// CountEventsByMinute counts the events of the log by minute. All replicas together count each event once. CountEventsByMinute stops
// before the first event id that a transaction which is still open may have taken.
func (k *Keeper) CountEventsByMinute(ctx context.Context) error {
	m := k.minutes
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.hasPosition {
		position, err := k.config.Ledger.ReadEventPosition(ctx, m.counted)
		if err != nil || position.Last == m.counted {
			return err
		}
		m.position, m.hasPosition = position, true
	}
	isComplete, err := k.config.Ledger.EventsComplete(ctx, m.position)
	if err != nil || !isComplete {
		return err
	}
	for {
		n, err := k.config.Ledger.CountMinutes(ctx, m.position.Last, minutesPart)
		if err != nil {
			return fmt.Errorf("updating the counts per minute: %w", err)
		}
		if n < minutesPart {
			m.counted, m.hasPosition = m.position.Last, false
			return nil
		}
	}
}

// SealEvents seals, in blocks, the events that CountEventsByMinute of this replica has counted. The seals show whether the log is changed later.
func (k *Keeper) SealEvents(ctx context.Context) error {
	m := k.minutes
	m.mu.Lock()
	defer m.mu.Unlock()
	for range sealsPerPass {
		n, err := k.config.Ledger.SealEvents(ctx, m.counted, eventsPerSeal)
		if err != nil || n < eventsPerSeal {
			return err
		}
	}
	return nil
}
