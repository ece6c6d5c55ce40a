package store

import (
	"context"
	"fmt"
)

// SlotChangesBetween counts, for each pool, the grants and the ended grants in the events with afterEvent < id <= lastEvent. The field Step
// of all results is 0.
func (s pools) SlotChangesBetween(ctx context.Context, afterEvent, lastEvent int64) ([]SlotChanges, error) {
	if afterEvent >= lastEvent {
		return nil, nil
	}
	moves, err := collect(ctx, s.customPlanSession(), func(m *SlotChanges) []any { return []any{&m.Pool, &m.Granted, &m.Ended, &m.Lapsed} }, `
		SELECT pool, sum(granted), count(*) - sum(granted), sum(lapsed) FROM (
			SELECT pool, CASE kind WHEN 'task.granted' THEN 1 ELSE 0 END AS granted, CASE kind WHEN 'task.lapsed' THEN 1 ELSE 0 END AS lapsed
			FROM events WHERE id > $1 AND id <= $2 AND `+isSlotEventSQL+`) AS moves
		GROUP BY pool`, afterEvent, lastEvent)
	if err != nil {
		return nil, fmt.Errorf("counting slot changes: %w", err)
	}
	return moves, nil
}
