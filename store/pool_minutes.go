package store

import (
	"context"
	"fmt"
	"time"
)

// PoolMinute holds what happened to the slots of a pool in one minute.
type PoolMinute struct {
	At       int64 // minutes since 1970
	Granted  int
	Ended    int // number of ended grants, including the grants in Lapsed, which the reaper ended
	Lapsed   int
	Failed   int // number of failed attempts (isFailureEventSQL)
	Capacity int // capacity at the end of the minute; -1 means that it did not change
}

// PoolMinutes holds the counts of a pool per minute, and the present state of the pool.
type PoolMinutes struct {
	Now            time.Time // time of the reading, by the database's clock
	Created        time.Time
	Held           int // slots held now
	Capacity       int // the present capacity
	CapacityBefore int // the capacity before the first minute; -1 means unknown
	Minutes        []PoolMinute
}

// minutesKept is the time for which the counts are kept. It is one day more than the longest range of a chart.
const minutesKept = 8 * 24 * time.Hour

// isSlotEventSQL is the condition that an event of a task grants or frees a slot.
const isSlotEventSQL = `token <> 0 AND kind LIKE 'task.%' AND kind NOT IN ('task.cancel_asked', 'task.succeeded_late')`

// isFailureEventSQL is the condition for events of failed attempts: the device failed or rejected the task, or its lease ended.
const isFailureEventSQL = `kind IN ('task.failed', 'task.timed_out', 'task.lapsed')`

// minuteColumns selects what one event adds to granted, ended, lapsed and failed of its minute: 0 or 1.
const minuteColumns = `CASE kind WHEN 'task.granted' THEN 1 ELSE 0 END AS granted,
	CASE WHEN ` + isSlotEventSQL + ` AND kind <> 'task.granted' THEN 1 ELSE 0 END AS ended, CASE kind WHEN 'task.lapsed' THEN 1 ELSE 0 END AS lapsed,
	CASE WHEN ` + isFailureEventSQL + ` THEN 1 ELSE 0 END AS failed`

// isMinuteEventSQL is the condition for events that are counted per minute. Each of them creates or changes the row for its pool and its minute.
const isMinuteEventSQL = `(` + isSlotEventSQL + ` OR kind IN ('pool.created', 'pool.changed'))`

// CountMinutes adds the next events to the counts per minute, and returns their number. It counts at most limit events after the last
// counted event, up to the id lastEvent. Events up to lastEvent must be complete (EventsComplete). All replicas together count each event
// once.
func (s pools) CountMinutes(ctx context.Context, lastEvent int64, limit int) (counted int, err error) {
	defer wrapError(&err, "counting slot changes")
	err = s.write(ctx, func(tx session) error {
		from, err := queryOne(ctx, tx, singleColumn[int64], `SELECT event FROM minutes_counted FOR UPDATE`)
		if counted = 0; err != nil || from >= lastEvent {
			return err
		}
		var last int64
		if err := tx.scanRow(ctx, []any{&counted, &last}, `
			SELECT count(*), coalesce(max(id), 0) FROM (SELECT id FROM events WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3) AS next`, from, lastEvent, limit); err != nil {
			return err
		}
		if counted < limit {
			last = lastEvent
		}
		return tx.countEventsByMinute(ctx, from, last)
	})
	return counted, err
}

func (s session) countEventsByMinute(ctx context.Context, afterEvent, lastEvent int64) error {
	if _, err := s.exec(ctx, `
		INSERT INTO pool_minutes (pool, minute, granted, ended, lapsed, failed, capacity)
		SELECT p.name, m.minute, sum(m.granted), sum(m.ended), sum(m.lapsed), sum(m.failed), max(p.capacity)
		FROM (SELECT pool, {minute of at} AS minute, `+minuteColumns+` FROM events WHERE id > $1 AND id <= $2 AND `+isMinuteEventSQL+`) AS m JOIN pools p ON p.name = m.pool
		WHERE TRUE GROUP BY p.name, m.minute
		ON CONFLICT (pool, minute) DO UPDATE SET granted = pool_minutes.granted + excluded.granted,
			ended = pool_minutes.ended + excluded.ended, lapsed = pool_minutes.lapsed + excluded.lapsed,
			failed = pool_minutes.failed + excluded.failed, capacity = excluded.capacity`, afterEvent, lastEvent); err != nil {
		return err
	}
	_, err := s.exec(ctx, `UPDATE minutes_counted SET event = $1`, lastEvent)
	return err
}

// Minutes returns the counts of a pool for the last period, oldest first, without minutes in which nothing happened. Counts, later events
// and grants are from one snapshot, so the numbers of held slots in the past can be computed from the present number. Error: ErrNotFound.
func (s pools) Minutes(ctx context.Context, pool string, period time.Duration) (PoolMinutes, error) {
	var m PoolMinutes
	if err := s.readSession().scanRow(ctx, []any{&m.Now, &m.Created, &m.Capacity}, `SELECT {now}, created_at, capacity FROM pools WHERE name = $1 AND deleted_at IS NULL`, pool); err != nil {
		return m, err
	}
	from := m.Now.Add(-period).Unix() / 60
	rows, err := collect(ctx, s.customPlanSession(), func(m *PoolMinute) []any {
		return []any{&m.At, &m.Granted, &m.Ended, &m.Lapsed, &m.Failed, &m.Capacity}
	}, minutesText, pool, from, searchLimit)
	if err != nil {
		return m, fmt.Errorf("reading the minutes of pool %s: %w", pool, err)
	}
	m.CapacityBefore = -1
	for _, r := range rows {
		switch {
		case r.At == heldRow:
			m.Held = r.Granted
		case r.At < from:
			m.CapacityBefore = r.Capacity
		default:
			m.Minutes = append(m.Minutes, r)
		}
	}
	return m, nil
}

// heldRow marks a row of minutesText that is no minute: it has the number of held slots in place of the number of grants.
const heldRow = -1

// minutesText is the statement of Minutes. It adds the events that are not counted yet, at most the oldest $3. It also adds the last minute
// before the period, because this minute has the capacity at the start of the period.
const minutesText = `
	WITH counted AS (SELECT event FROM minutes_counted)
	SELECT minute, sum(granted), sum(ended), sum(lapsed), sum(failed), max(capacity) FROM (
		SELECT minute, granted, ended, lapsed, failed, capacity FROM pool_minutes WHERE pool = $1 AND minute >= $2
		UNION ALL SELECT minute, 0, 0, 0, 0, capacity FROM (
			SELECT minute, capacity FROM pool_minutes WHERE pool = $1 AND minute < $2 ORDER BY minute DESC LIMIT 1) AS before
		UNION ALL SELECT {minute of at}, ` + minuteColumns + `, -1 FROM (
			SELECT * FROM events WHERE pool <> '' AND (pool, id) > ($1, (SELECT event FROM counted)) AND (pool, id) < ($1, 9223372036854775807)
			ORDER BY pool, id LIMIT $3) AS since WHERE ` + isSlotEventSQL + `) AS minutes
	GROUP BY minute
	UNION ALL SELECT -1, count(*), 0, 0, 0, 0 FROM grants WHERE pool = $1
	ORDER BY 1`

// SlotChanges holds the number of new grants of a pool, and the number of grants that the reaper ended.
type SlotChanges struct {
	Pool            string
	Granted, Lapsed int
}

// SlotChangesBetween counts the changes of each pool in the events with afterEvent < id <= lastEvent.
func (s pools) SlotChangesBetween(ctx context.Context, afterEvent, lastEvent int64) (_ []SlotChanges, err error) {
	defer wrapError(&err, "counting slot changes")
	if afterEvent >= lastEvent {
		return nil, nil
	}
	return collect(ctx, s.customPlanSession(), func(m *SlotChanges) []any { return []any{&m.Pool, &m.Granted, &m.Lapsed} }, `
		SELECT pool, sum(granted), sum(lapsed) FROM (
			SELECT pool, `+minuteColumns+` FROM events WHERE id > $1 AND id <= $2 AND `+isSlotEventSQL+`) AS moves
		GROUP BY pool`, afterEvent, lastEvent)
}
