package store

import (
	"context"
	"fmt"
	"time"
)

// Minute is what became of the slots of a pool in a minute.
type Minute struct {
	At       int64 // minutes since 1970
	Granted  int
	Ended    int // of them Lapsed by the reaper
	Lapsed   int
	Capacity int // at its end; -1: as before
}

// Minutes is how full a pool was.
type Minutes struct {
	Now      time.Time // by the database's clock
	Created  time.Time
	Held     int // now
	Capacity int // now
	Before   int // the capacity before the first minute; -1: not known
	Minutes  []Minute
}

// minutesKept is how long they are: the longest range and a day.
const minutesKept = 8 * 24 * time.Hour

// moved are what an event counts for.
const moved = `CASE kind WHEN 'task.granted' THEN 1 ELSE 0 END AS granted,
	CASE WHEN ` + movesSlots + ` AND kind <> 'task.granted' THEN 1 ELSE 0 END AS ended, CASE kind WHEN 'task.lapsed' THEN 1 ELSE 0 END AS lapsed`

// tells is true of the events that make a minute of their pool.
const tells = `(` + movesSlots + ` OR kind IN ('pool.created', 'pool.changed'))`

// CountMinutes counts up to limit events above those that were counted last, up to an id
// at which all have settled, and says how many: each is counted once, by whichever replica.
func (s pools) CountMinutes(ctx context.Context, upTo int64, limit int) (counted int, err error) {
	err = s.write(ctx, func(tx session) error {
		from, err := one(ctx, tx, only[int64], `SELECT event FROM minutes_counted {lock}`)
		if counted = 0; err != nil || from >= upTo {
			return err
		}
		var last int64
		if err := tx.rowOf(ctx, `
			SELECT count(*), coalesce(max(id), 0) FROM (SELECT id FROM events WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3) AS next`,
			[]any{from, upTo, limit}, &counted, &last); err != nil {
			return err
		}
		if counted < limit {
			last = upTo
		}
		return tx.pools().countMinutes(ctx, from, last)
	})
	if err != nil {
		return 0, fmt.Errorf("counting what became of slots: %w", err)
	}
	return counted, nil
}

func (s poolsIn) countMinutes(ctx context.Context, from, last int64) error {
	if _, err := s.exec(ctx, `
		INSERT INTO pool_minutes (pool, minute, granted, ended, lapsed, capacity)
		SELECT p.name, m.minute, sum(m.granted), sum(m.ended), sum(m.lapsed), max(p.capacity)
		FROM (SELECT pool, {minute of at} AS minute, `+moved+` FROM events WHERE id > $1 AND id <= $2 AND `+tells+`) AS m JOIN pools p ON p.name = m.pool
		WHERE TRUE GROUP BY p.name, m.minute
		ON CONFLICT (pool, minute) DO UPDATE SET granted = pool_minutes.granted + excluded.granted,
			ended = pool_minutes.ended + excluded.ended, lapsed = pool_minutes.lapsed + excluded.lapsed, capacity = excluded.capacity`, from, last); err != nil {
		return err
	}
	_, err := s.exec(ctx, `UPDATE minutes_counted SET event = $1`, last)
	return err
}

// Minutes reads the minutes of a pool since so long ago in which something happened, the
// oldest first; ErrNotFound. The slots held before follow from those held now: the
// minutes, the events not yet counted and the grants are of one moment.
func (s pools) Minutes(ctx context.Context, pool string, back time.Duration) (Minutes, error) {
	var m Minutes
	if err := s.read().rowOf(ctx, `SELECT {now}, created_at, capacity FROM pools WHERE name = $1 AND deleted_at IS NULL`,
		[]any{pool}, instant{&m.Now}, instant{&m.Created}, &m.Capacity); err != nil {
		return m, err
	}
	from := m.Now.Add(-back).Unix() / 60
	rows, err := collect(ctx, s.planned(), func(m *Minute) []any { return []any{&m.At, &m.Granted, &m.Ended, &m.Lapsed, &m.Capacity} }, minutesText, pool, from, lookedAt)
	if err != nil {
		return m, fmt.Errorf("reading the minutes of pool %s: %w", pool, err)
	}
	m.Before = -1
	for _, r := range rows {
		switch {
		case r.At == heldRow:
			m.Held = r.Granted
		case r.At < from:
			m.Before = r.Capacity
		default:
			m.Minutes = append(m.Minutes, r)
		}
	}
	return m, nil
}

// heldRow is the number of the row that says how many slots are held.
const heldRow = -1

// minutesText has also the last minute before, for the capacity. Few events wait to be
// counted; if nobody counts, the oldest of them are looked at.
const minutesText = `
	WITH counted AS (SELECT event FROM minutes_counted)
	SELECT minute, sum(granted), sum(ended), sum(lapsed), max(capacity) FROM (
		SELECT minute, granted, ended, lapsed, capacity FROM pool_minutes WHERE pool = $1 AND minute >= $2
		UNION ALL SELECT minute, 0, 0, 0, capacity FROM (
			SELECT minute, capacity FROM pool_minutes WHERE pool = $1 AND minute < $2 ORDER BY minute DESC LIMIT 1) AS before
		UNION ALL SELECT {minute of at}, ` + moved + `, -1 FROM (
			SELECT * FROM events WHERE pool <> '' AND (pool, id) > ($1, (SELECT event FROM counted)) AND (pool, id) < ($1, 9223372036854775807)
			ORDER BY pool, id LIMIT $3) AS since WHERE ` + movesSlots + `) AS minutes
	GROUP BY minute
	UNION ALL SELECT -1, count(*), 0, 0, 0 FROM grants WHERE pool = $1
	ORDER BY 1`
