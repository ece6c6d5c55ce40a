package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// OpenPool is a pool that has free slots and a batch with tasks that could start. The devices of these tasks may be busy.
type OpenPool struct {
	Name string
	Free int // number of free slots, at least 1
}

// OpenPools returns all pools that have free slots and a batch with tasks that could start now, in one snapshot.
func (s pools) OpenPools(ctx context.Context) (_ []OpenPool, err error) {
	defer wrapError(&err, "reading pools with free slots")
	return collect(ctx, s.readSession(), func(p *OpenPool) []any { return []any{&p.Name, &p.Free} }, `
		SELECT name, free FROM (
			SELECT p.name, p.capacity - (SELECT count(*) FROM grants g WHERE g.pool = p.name) AS free FROM pools p
			WHERE p.deleted_at IS NULL AND p.paused IS FALSE AND p.capacity > 0
				AND EXISTS (SELECT 1 FROM tasks t WHERE t.pool = p.name AND t.state = 'pending')) AS candidates
		WHERE free > 0 AND name IN (
			SELECT b.pool FROM batches b JOIN pools p ON p.name = b.pool
			WHERE `+isStartableSQL()+` AND EXISTS (SELECT 1 FROM tasks t WHERE t.batch = b.id AND t.state = 'pending'))`)
}

// WaitingCount is the result of one call of CountWaitingDevices.
type WaitingCount struct {
	Waiting int    // number of devices that wait
	Last    string // the last device that was checked; empty if the count is complete or has reached the limit
}

// maxDevicesChecked is the maximum number of devices that one call of CountWaitingDevices checks, in about 10 ms.
const maxDevicesChecked = 500

// CountWaitingDevices counts the devices that could get a task of the pool now, hold no slot, and have not been silent for longer than
// seenWithin (Device.QuietUntil). It checks the next maxDevicesChecked devices that have tasks and a name > afterDevice, in the order of names.
// It stops when it has counted limit devices.
func (s pools) CountWaitingDevices(ctx context.Context, pool string, seenWithin time.Duration, afterDevice string, limit int) (_ WaitingCount, err error) {
	defer wrapError(&err, "counting the waiters of pool %s", pool)
	dest := func(c *WaitingCount) []any { return []any{&c.Waiting, &c.Last} }
	return queryOne(ctx, s.readSession(), dest, waitingDevicesSQL(), pool, limit, seenWithin.Milliseconds(), afterDevice)
}

// waitingDevicesSQL returns the statement of CountWaitingDevices: $1 is pool, $2 is limit, $3 is seenWithin in ms, and $4 is afterDevice.
func waitingDevicesSQL() string {
	most := fmt.Sprint(maxDevicesChecked)
	return devicesWithTasksCTE("$1", "$4", "n < "+most) + `
	SELECT count(*), CASE WHEN count(*) < $2 AND (SELECT count(device) FROM who) = ` + most + ` THEN (SELECT max(device) FROM who) ELSE '' END
	FROM (` + startableDevicesSQL("$1", "$2", "(SELECT d.quiet_until FROM devices d WHERE d.id = who.device) > {now} - $3 * {ms}") + `) AS waiting`
}

// TakeIdleTime returns the time since any replica last called it, so that the results of all replicas add up to the time that has passed.
// If less than minElapsed has passed, it returns 0, and the result of a later call includes this time.
func (s pools) TakeIdleTime(ctx context.Context, minElapsed time.Duration) (sinceLastCall time.Duration, err error) {
	var from, until time.Time
	err = s.write(ctx, func(tx session) error {
		t, err := queryOne(ctx, tx, func(t *[2]time.Time) []any { return []any{&t[0], &t[1]} }, `
			UPDATE idle_time SET taken_before = taken_at, taken_at = {now} WHERE taken_at <= {now} - $1 * {ms}
			RETURNING taken_before, taken_at`, minElapsed.Milliseconds())
		from, until = t[0], t[1]
		return err
	})
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("taking idle time: %w", err)
	}
	return until.Sub(from), nil
}

// PoolsWithWork returns the elements of pools that may make grants and have open tasks, waiting or running. It does not check for free slots. If
// no device can be notified, it returns no pools.
func (s pools) PoolsWithWork(ctx context.Context, pools []string) (_ []string, err error) {
	defer wrapError(&err, "finding pools with work")
	return collect(ctx, s.readSession(), singleColumn[string], poolsWithWorkSQL(), namesToJSONArray(pools))
}

// poolsWithWorkSQL returns the statement of PoolsWithWork, which reads one task per pool. It looks for this task without EXISTS, because for an
// EXISTS Postgres may read the tasks of all pools once for each pool.
func poolsWithWorkSQL() string {
	return `
	SELECT p.name FROM {names} JOIN pools p ON p.name = names.name
	WHERE p.deleted_at IS NULL AND p.paused IS FALSE AND p.capacity > 0 AND ` + poolMayGrantSQL + `
		AND EXISTS (SELECT 1 FROM devices d WHERE d.reach <> 0)
		AND (SELECT t.id FROM tasks t WHERE t.pool = p.name AND t.state = 'pending' LIMIT 1) IS NOT NULL
	ORDER BY names.n`
}

// PoolsWithUrgent returns the elements of pools that have an urgent batch with a waiting task, if the tasks of this batch may start now.
func (s pools) PoolsWithUrgent(ctx context.Context, pools []string) (_ []string, err error) {
	defer wrapError(&err, "finding pools with urgent work")
	return collect(ctx, s.readSession(), singleColumn[string], poolsWithUrgentSQL(), namesToJSONArray(pools))
}

func poolsWithUrgentSQL() string {
	return `
	SELECT p.name FROM {names} JOIN pools p ON p.name = names.name
	WHERE (SELECT b.id FROM batches b WHERE b.pool = p.name AND ` + isOpenUrgentSQL("p.name") + ` AND ` + isStartableSQL() + ` ORDER BY b.pool, b.id LIMIT 1) IS NOT NULL
	ORDER BY names.n`
}
