package store

import (
	"context"
	"fmt"
	"time"
)

// SlotActivity holds what happened to the slots of all pools in the recent past, according to the events.
type SlotActivity struct {
	Back    time.Duration  // the data begins this long ago
	Held    map[string]int // slots held now, by pool; pools without held slots are left out
	Steps   []SlotChanges
	Resizes []Resize // latest first
}

// SlotChanges holds the number of grants and of ended grants of one pool in one step of time.
type SlotChanges struct {
	Pool    string
	Step    int // how many whole steps of time ago; 0 is the present step
	Granted int
	Ended   int // number of ended grants, including Lapsed
	Lapsed  int // number of grants that the reaper ended
	Failed  int // number of failed attempts (isFailureEventSQL)
}

// Resize is the creation or change of a pool.
type Resize struct {
	Pool           string
	Ago            time.Duration
	CapacityBefore int // -1 means that the capacity did not change
	Created        bool
}

// isSlotEventSQL is the condition that an event is about a task and grants or frees a slot.
const isSlotEventSQL = `token <> 0 AND kind LIKE 'task.%' AND kind NOT IN ('task.cancel_asked', 'task.succeeded_late')`

// SlotActivity reads what happened to the slots of all pools within the last period of length back. It divides this period into steps of
// the length step. If the log has more than maxEvents events in the period, the result begins later.
func (s pools) SlotActivity(ctx context.Context, back, step time.Duration, maxEvents int64) (SlotActivity, error) {
	from, err := s.findLogStart(ctx, back, maxEvents)
	if err != nil {
		return SlotActivity{}, err
	}
	m := SlotActivity{Back: back, Held: map[string]int{}}
	if from.cut {
		m.Back = min(back, from.ago)
	}
	// One statement reads both the held slots and the events, so that both are from the same moment.
	steps, err := collect(ctx, s.customPlanSession(), func(m *SlotChanges) []any { return []any{&m.Pool, &m.Step, &m.Granted, &m.Ended, &m.Lapsed, &m.Failed} }, `
		WITH clock AS (SELECT {now} AS now)
		SELECT pool, step, sum(granted), count(*) - sum(granted), sum(lapsed), sum(failed) FROM (
			SELECT pool, {age} / $2 AS step, `+minuteColumns+`
			FROM events, clock
			WHERE id > $1 AND `+isSlotEventSQL+`) AS moves
		GROUP BY pool, step
		UNION ALL SELECT pool, -1, count(*), 0, 0, 0 FROM grants GROUP BY pool`, from.id, step.Milliseconds())
	if err != nil {
		return SlotActivity{}, fmt.Errorf("reading slot changes: %w", err)
	}
	for _, one := range steps {
		if one.Step < 0 {
			m.Held[one.Pool] = one.Granted
			continue
		}
		m.Steps = append(m.Steps, one)
	}
	m.Resizes, err = s.resizes(ctx, from.id)
	return m, err
}

// logStart is the position in the log of events at which a period begins.
type logStart struct {
	id  int64 // the period has only events with a higher id
	cut bool  // whether the log has more events in the period than the maximum
	ago time.Duration
}

// findLogStart returns the position in the log at which the last period of length back begins. If the log has more than maxEvents events in
// that period, it returns a later position.
func (s pools) findLogStart(ctx context.Context, back time.Duration, maxEvents int64) (logStart, error) {
	var last int64
	if err := s.readSession().scanRow(ctx, []any{&last}, `SELECT {last event}`); err != nil {
		return logStart{}, fmt.Errorf("reading the end of the log: %w", err)
	}
	floor := max(0, last-maxEvents)
	// Ids increase almost in the order of times. So the last event before the period has an id close to the first event in the period.
	start, err := queryOne(ctx, s.customPlanSession(), func(l *logStart) []any { return []any{&l.id, &l.ago} }, `
		WITH clock AS (SELECT {now} AS now),
		start AS (SELECT coalesce((SELECT id FROM events, clock WHERE id > $1 AND {age} > $2 ORDER BY id DESC LIMIT 1), $1) AS id)
		SELECT id, coalesce((SELECT {age} FROM events, clock WHERE id > start.id ORDER BY id LIMIT 1), 0) FROM start`, floor, back.Milliseconds())
	if err != nil {
		return start, fmt.Errorf("reading the start of the log: %w", err)
	}
	start.cut = floor > 0 && start.id == floor
	return start, nil
}

// resizes returns the creations and changes of pools that are in events with an id > the parameter after, latest first.
func (s pools) resizes(ctx context.Context, after int64) ([]Resize, error) {
	type reading struct {
		Resize
		detail string
	}
	rows, err := collect(ctx, s.customPlanSession(), func(r *reading) []any {
		return []any{&r.Pool, &r.Ago, &r.Created, &r.detail}
	}, `
		WITH clock AS (SELECT {now} AS now)
		SELECT e.pool, {age}, e.kind = 'pool.created', e.detail
		FROM events e, clock WHERE id > $1 AND kind IN ('pool.created', 'pool.changed') AND kind NOT LIKE 'task.%' ORDER BY id DESC LIMIT 1000`, after)
	if err != nil {
		return nil, fmt.Errorf("reading changes of pools: %w", err)
	}
	list := make([]Resize, len(rows))
	for i, r := range rows {
		list[i] = r.Resize
		if n, _ := fmt.Sscanf(r.detail, "capacity=%d -> ", &list[i].CapacityBefore); n == 0 || r.Created {
			list[i].CapacityBefore = -1
		}
	}
	return list, nil
}
