package upkeep

import (
	"context"
	"fmt"
	"sync"

	"github.com/fleetslots/dispatcher/store"
)

// minuteLedger counts the events of each pool by the minute.
type minuteLedger interface {
	MarkEvents(ctx context.Context, sent int64) (store.EventMark, error)
	EventsSettled(ctx context.Context, mark store.EventMark) (bool, error)
	CountMinutes(ctx context.Context, upTo int64, limit int) (int, error)
}

// minutes is how far this replica has seen the events counted.
type minutes struct {
	mu      sync.Mutex
	counted int64           // none is left up to this id
	mark    store.EventMark // the next one
	marked  bool
}

// minutesPart is how many events are counted in one transaction.
const minutesPart = 20_000

// CountMinutes counts, for the curves of days, what has settled in the log since the last
// time that any replica did.
func (k *Keeper) CountMinutes(ctx context.Context) error {
	m := k.minutes
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.marked {
		mark, err := k.config.Ledger.MarkEvents(ctx, m.counted)
		if err != nil || mark.Last == m.counted {
			return err //nolint:wrapcheck // says what it read
		}
		m.mark, m.marked = mark, true
	}
	settled, err := k.config.Ledger.EventsSettled(ctx, m.mark)
	if err != nil || !settled {
		return err //nolint:wrapcheck // likewise
	}
	for {
		n, err := k.config.Ledger.CountMinutes(ctx, m.mark.Last, minutesPart)
		if err != nil {
			return fmt.Errorf("counting by the minute: %w", err)
		}
		if n < minutesPart {
			m.counted, m.marked = m.mark.Last, false
			return nil
		}
	}
}
