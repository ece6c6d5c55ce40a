package store

import (
	"context"
	"fmt"
	"time"
)

// Moves is what became of the slots of all pools lately, as the log tells it.
type Moves struct {
	Back    time.Duration  // how long ago the telling begins
	Held    map[string]int // slots that are held now, by pool; none: left out
	Steps   []Move
	Resizes []Resize // latest first
}

// Move is what happened in one pool in one step.
type Move struct {
	Pool    string
	Step    int // how many whole steps ago
	Granted int
	Ended   int // of them Lapsed by the reaper
	Lapsed  int
}

// Resize is a pool that was made or changed.
type Resize struct {
	Pool             string
	Ago              time.Duration
	Capacity, Before int // -1: not known
	Created          bool
}

// movesSlots is true of the events of a task that gives or frees a slot.
const movesSlots = `token <> 0 AND kind LIKE 'task.%' AND kind NOT IN ('task.cancel_asked', 'task.succeeded_late')`

// Moves reads what happened in the steps since so long ago, or in fewer where
// more than most events were logged since.
func (s pools) Moves(ctx context.Context, back, step time.Duration, most int64) (Moves, error) {
	from, err := s.movesFrom(ctx, back, most)
	if err != nil {
		return Moves{}, err
	}
	m := Moves{Back: back, Held: map[string]int{}}
	if from.cut {
		m.Back = min(back, from.ago)
	}
	// Grants and what ended them are of one moment: one statement.
	steps, err := collect(ctx, s.planned(), func(m *Move) []any { return []any{&m.Pool, &m.Step, &m.Granted, &m.Ended, &m.Lapsed} }, `
		WITH clock AS (SELECT {now} AS now)
		SELECT pool, step, sum(granted), count(*) - sum(granted), sum(lapsed) FROM (
			SELECT pool, {age} / $2 AS step, CASE kind WHEN 'task.granted' THEN 1 ELSE 0 END AS granted, CASE kind WHEN 'task.lapsed' THEN 1 ELSE 0 END AS lapsed
			FROM events, clock
			WHERE id > $1 AND `+movesSlots+`) AS moves
		GROUP BY pool, step
		UNION ALL SELECT pool, -1, count(*), 0, 0 FROM grants GROUP BY pool`, from.id, step.Milliseconds())
	if err != nil {
		return Moves{}, fmt.Errorf("reading what became of slots: %w", err)
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

// logStart is a position in the log.
type logStart struct {
	id  int64 // what counts is above
	cut bool  // there is more than was asked for
	ago time.Duration
}

func (s pools) movesFrom(ctx context.Context, back time.Duration, most int64) (logStart, error) {
	var last int64
	if err := s.read().row(ctx, `SELECT {last event}`, &last); err != nil {
		return logStart{}, fmt.Errorf("the end of the log: %w", err)
	}
	floor := max(0, last-most)
	// Ids go up with time, nearly: the last that is too old is near the first that is not.
	start, err := one(ctx, s.planned(), func(l *logStart) []any { return []any{&l.id, millis{&l.ago}} }, `
		WITH clock AS (SELECT {now} AS now),
		start AS (SELECT coalesce((SELECT id FROM events, clock WHERE id > $1 AND {age} > $2 ORDER BY id DESC LIMIT 1), $1) AS id)
		SELECT id, coalesce((SELECT {age} FROM events, clock WHERE id > start.id ORDER BY id LIMIT 1), 0) FROM start`, floor, back.Milliseconds())
	if err != nil {
		return start, fmt.Errorf("where the log begins: %w", err)
	}
	start.cut = floor > 0 && start.id == floor
	return start, nil
}

// resizes are the changes of pools that were logged above an id.
func (s pools) resizes(ctx context.Context, from int64) ([]Resize, error) {
	type reading struct {
		Resize
		kind, detail, before string
	}
	const changes = `kind IN ('pool.created', 'pool.changed')`
	rows, err := collect(ctx, s.planned(), func(r *reading) []any {
		return []any{&r.Pool, millis{&r.Ago}, &r.kind, &r.detail, opt(&r.before)}
	}, `
		WITH clock AS (SELECT {now} AS now)
		-- Each of the tasks of the pool stands between its changes: those of long ago are not looked for.
		SELECT e.pool, {age}, e.kind, e.detail, (
			SELECT b.detail FROM (
				SELECT id, kind, detail FROM events WHERE pool <> '' AND pool = e.pool AND id < e.id ORDER BY id DESC LIMIT 10000) AS b
			WHERE b.`+changes+` ORDER BY b.id DESC LIMIT 1)
		FROM events e, clock WHERE id > $1 AND `+changes+` ORDER BY id DESC LIMIT 1000`, from)
	if err != nil {
		return nil, fmt.Errorf("reading how pools were changed: %w", err)
	}
	list := make([]Resize, len(rows))
	for i, r := range rows {
		list[i] = r.Resize
		list[i].Capacity, list[i].Before, list[i].Created = capacityIn(r.detail), capacityIn(r.before), r.kind == "pool.created"
	}
	return list, nil
}

// capacityIn reads the detail of an event of a pool; -1: it does not say.
func capacityIn(detail string) int {
	n := 0
	if _, err := fmt.Sscanf(detail, "capacity=%d ", &n); err != nil {
		return -1
	}
	return n
}
