package store

import "context"

// SlotChangesBetween counts, for each pool, the grants and the ended grants in the events with afterEvent < id <= lastEvent. The field Step
// of all results is 0.
func (s pools) SlotChangesBetween(ctx context.Context, afterEvent, lastEvent int64) (_ []SlotChanges, err error) {
	defer describe(&err, "counting slot changes")
	if afterEvent >= lastEvent {
		return nil, nil
	}
	return collect(ctx, s.customPlanSession(), func(m *SlotChanges) []any { return []any{&m.Pool, &m.Granted, &m.Ended, &m.Lapsed, &m.Failed} }, `
		SELECT pool, sum(granted), count(*) - sum(granted), sum(lapsed), sum(failed) FROM (
			SELECT pool, `+minuteColumns+` FROM events WHERE id > $1 AND id <= $2 AND `+isSlotEventSQL+`) AS moves
		GROUP BY pool`, afterEvent, lastEvent)
}
