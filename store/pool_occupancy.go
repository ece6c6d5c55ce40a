package store

import (
	"context"
	"time"
)

// Occupancy lists which devices hold which slots of one pool.
type Occupancy struct {
	Pool    Pool
	Grants  []Grant    // in the order of slots, including grants that lapsed and are not yet reaped
	Oldest  *time.Time // creation of the batch of the oldest pending task; nil means that no task is pending
	Waiting int        // devices that could start a task now and hold no slot, counted up to a bound
}

// Occupancy reads a pool, its grants and the number of waiting devices, counted up to waitingMax. It uses one statement, so all values are
// from one moment. It returns ErrNotFound if there is no such pool.
func (s pools) Occupancy(ctx context.Context, pool string, waitingMax int) (Occupancy, error) {
	type reading struct {
		Occupancy
		grant Grant
	}
	name := hidden("$1", "text")
	rows, err := collect(ctx, s.read(), func(r *reading) []any {
		return append(append(poolDest(&r.Pool), &r.Waiting, maybe{&r.Oldest}), grantDest(&r.grant)...)
	}, `
		WITH wanted AS (
			SELECT `+poolColumns+`, (`+waitingCount(name, hidden("$2", "integer"))+`) AS waiting, (`+oldestPending(name)+`) AS oldest
			FROM pools WHERE name = `+name+` AND deleted_at IS NULL)
		SELECT w.*, `+grantColumns+` FROM wanted w
			LEFT JOIN grants g ON g.pool = w.name LEFT JOIN tasks t ON t.id = g.task LEFT JOIN batches b ON b.id = g.batch
		ORDER BY g.slot`, pool, waitingMax)
	if err != nil {
		return Occupancy{}, err
	}
	if len(rows) == 0 {
		return Occupancy{}, ErrNotFound
	}
	o := rows[0].Occupancy
	for _, r := range rows {
		if r.grant.Task != 0 {
			o.Grants = append(o.Grants, r.grant)
		}
	}
	return o, nil
}

// waitingFound returns the query that counts the tasks of a pool that could start now, up to the limit tasks, and their devices, which hold
// no slot. Both arguments are SQL. The limit is inside the query that selects tasks, and the lookups of single devices are outside of it.
// So the work is bounded, and the plan does not depend on how many devices are blocked.
func waitingFound(pool, tasks string) string {
	return `
	SELECT count(*) AS tasks, count(DISTINCT CASE WHEN (SELECT d.id FROM devices d WHERE d.id = next.device AND d.blocked) IS NULL THEN next.device END) AS devices
	FROM (
		SELECT t.device FROM tasks t
		WHERE t.pool = ` + pool + ` AND t.state = 'pending' AND ` + timely + `
			AND t.batch IN (` + startableBatches(pool) + `)
			AND NOT EXISTS (SELECT 1 FROM grants g WHERE g.device = t.device)
		LIMIT ` + tasks + `) AS next`
}

// waitingCount returns the query that counts the waiting devices up to `most`, however many tasks each of them has. If the first `most`
// tasks belong to fewer devices, it steps from device to device instead, over at most 4 * `most` devices.
func waitingCount(pool, most string) string {
	return `
	SELECT CASE WHEN found.tasks < ` + most + ` OR found.devices >= ` + most + ` THEN found.devices ELSE (` + waitingLeap(pool, most) + `) END
	FROM (` + waitingFound(pool, most) + `) AS found`
}

// waitingLeap returns the query that counts up to `most` waiting devices among the first 4 * `most` devices with tasks.
func waitingLeap(pool, most string) string {
	return whoWaits(pool, "n < 4 * "+most) + `
	SELECT count(*) FROM (` + startingNow(pool, most, "TRUE") + `) AS waiting`
}

// whoWaits returns a WITH clause for the devices with a pending task. It steps from device to device in their index as long as the
// condition in the argument is true.
func whoWaits(pool, further string) string {
	next := `(SELECT min(t.device) FROM tasks t WHERE t.state = 'pending' AND t.pool = ` + pool
	return `
	WITH RECURSIVE who(n, device) AS (
		SELECT 1, ` + next + `)
		UNION ALL
		SELECT n + 1, ` + next + ` AND t.device > who.device) FROM who WHERE who.device IS NOT NULL AND ` + further + `
	)`
}

// startingNow returns the query for at most `most` devices of whoWaits that could be granted a task now and satisfy the condition also.
func startingNow(pool, most, also string) string {
	return `
		SELECT who.device FROM who
		WHERE who.device IS NOT NULL AND ` + also + `
			AND (SELECT g.task FROM grants g WHERE g.device = who.device) IS NULL
			AND (SELECT d.id FROM devices d WHERE d.id = who.device AND d.blocked) IS NULL
			AND EXISTS (SELECT 1 FROM tasks t WHERE t.pool = ` + pool + ` AND t.state = 'pending' AND t.device = who.device
				AND ` + timely + ` AND t.batch IN (` + startableBatches(pool) + `))
		LIMIT ` + most
}

// startableBatches returns the query for the batches of a pool whose tasks could start now.
func startableBatches(pool string) string {
	return `SELECT b.id FROM batches b JOIN pools p ON p.name = b.pool WHERE b.pool = ` + pool + ` AND ` + startable()
}
