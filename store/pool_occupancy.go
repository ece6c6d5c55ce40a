package store

import (
	"context"
	"time"
)

// Occupancy lists which devices hold which slots of one pool.
type Occupancy struct {
	Pool    Pool
	Grants  []Grant    // in the order of slots, including grants that lapsed and are not yet reaped
	Oldest  *time.Time // creation of the batch of the oldest waiting task; nil means that no task waits
	Waiting int        // devices that could start a task now and hold no slot, counted up to a bound
}

// Occupancy reads a pool, its grants and its waiting devices, counted up to maxWaiting, by one statement. Error: ErrNotFound.
func (s pools) Occupancy(ctx context.Context, pool string, maxWaiting int) (Occupancy, error) {
	type reading struct {
		Occupancy
		grant Grant
	}
	name := hideValueFromPlannerSQL("$1", "text")
	rows, err := collect(ctx, s.readSession(), func(r *reading) []any {
		return append(append(poolScanDest(&r.Pool), &r.Waiting, &r.Oldest), grantScanDest(&r.grant)...)
	}, `
		WITH wanted AS (
			SELECT `+poolColumns+`, (`+waitingCountSQL(name, hideValueFromPlannerSQL("$2", "integer"))+`) AS waiting, (`+oldestWaitingSQL(name)+`) AS oldest
			FROM pools WHERE name = `+name+` AND deleted_at IS NULL)
		SELECT w.*, `+grantColumns+` FROM wanted w
			LEFT JOIN grants g ON g.pool = w.name LEFT JOIN tasks t ON t.id = g.task LEFT JOIN batches b ON b.id = g.batch
		ORDER BY g.slot`, pool, maxWaiting)
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

// startableCountSQL returns the query that counts the tasks of a pool that could start now, at most limitExpr, and their devices. It leaves out
// devices that hold a slot. The query looks up blocked devices outside of the part with the LIMIT, so its plan does not depend on their number.
// Parameters are SQL expressions.
func startableCountSQL(poolExpr, limitExpr string) string {
	return `
	SELECT count(*) AS tasks, count(DISTINCT CASE WHEN (SELECT d.id FROM devices d WHERE d.id = next.device AND d.blocked) IS NULL THEN next.device END) AS devices
	FROM (
		SELECT t.device FROM tasks t
		WHERE t.pool = ` + poolExpr + ` AND t.state = 'pending' AND ` + taskTimesAllow + `
			AND t.batch IN (` + startableBatchesSQL(poolExpr) + `)
			AND NOT EXISTS (SELECT 1 FROM grants g WHERE g.device = t.device)
		LIMIT ` + limitExpr + `) AS next`
}

// waitingCountSQL returns the query that counts the waiting devices of a pool up to limitExpr. If the first limitExpr tasks belong to fewer
// devices, the query goes from device to device instead, over at most 4 * limitExpr devices. Parameters are SQL expressions.
func waitingCountSQL(poolExpr, limitExpr string) string {
	return `
	SELECT CASE WHEN found.tasks < ` + limitExpr + ` OR found.devices >= ` + limitExpr + ` THEN found.devices ELSE (` + waitingByDeviceSQL(poolExpr, limitExpr) + `) END
	FROM (` + startableCountSQL(poolExpr, limitExpr) + `) AS found`
}

// waitingByDeviceSQL returns the query that counts, up to limitExpr, the waiting devices among the first 4 * limitExpr devices with tasks.
func waitingByDeviceSQL(poolExpr, limitExpr string) string {
	return devicesWithTasksCTE(poolExpr, "''", "n < 4 * "+limitExpr) + `
	SELECT count(*) FROM (` + startableDevicesSQL(poolExpr, limitExpr, "TRUE") + `) AS waiting`
}

// devicesWithTasksCTE returns a WITH clause that defines the table who: the devices with an open task in the pool poolExpr and a name >
// afterExpr. It steps from device to device in the index while conditionSQL is true.
func devicesWithTasksCTE(poolExpr, afterExpr, conditionSQL string) string {
	next := `(SELECT min(t.device) FROM tasks t WHERE t.state = 'pending' AND t.pool = ` + poolExpr
	return `
	WITH RECURSIVE who(n, device) AS (
		SELECT 1, ` + next + ` AND t.device > ` + afterExpr + `)
		UNION ALL
		SELECT n + 1, ` + next + ` AND t.device > who.device) FROM who WHERE who.device IS NOT NULL AND ` + conditionSQL + `
	)`
}

// startableDevicesSQL returns the query for the devices in the table who (devicesWithTasksCTE) that could get a task of the pool poolExpr now
// and satisfy conditionSQL.
func startableDevicesSQL(poolExpr, limitExpr, conditionSQL string) string {
	return `
		SELECT who.device FROM who
		WHERE who.device IS NOT NULL AND ` + conditionSQL + `
			AND (SELECT g.task FROM grants g WHERE g.device = who.device) IS NULL
			AND (SELECT d.id FROM devices d WHERE d.id = who.device AND d.blocked) IS NULL
			AND EXISTS (SELECT 1 FROM tasks t WHERE t.pool = ` + poolExpr + ` AND t.state = 'pending' AND t.device = who.device
				AND ` + taskTimesAllow + ` AND t.batch IN (` + startableBatchesSQL(poolExpr) + `))
		LIMIT ` + limitExpr
}

// startableBatchesSQL returns the query for the batches of the pool poolExpr whose tasks could start now.
func startableBatchesSQL(poolExpr string) string {
	return `SELECT b.id FROM batches b JOIN pools p ON p.name = b.pool WHERE b.pool = ` + poolExpr + ` AND ` + isStartableSQL()
}
