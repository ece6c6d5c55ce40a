package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// OpenPool is a pool that has free slots and a batch with tasks that could start. Whether the devices of these tasks are free is not
// checked.
type OpenPool struct {
	Name string
	Free int // number of free slots, at least 1
}

// OpenPools returns all pools that have free slots and a batch with tasks that could start now, in one snapshot.
func (s pools) OpenPools(ctx context.Context) ([]OpenPool, error) {
	pools, err := collect(ctx, s.readSession(), func(p *OpenPool) []any { return []any{&p.Name, &p.Free} }, `
		SELECT name, free FROM (
			SELECT p.name, p.capacity - (SELECT count(*) FROM grants g WHERE g.pool = p.name) AS free FROM pools p
			WHERE p.deleted_at IS NULL AND p.paused IS FALSE AND p.capacity > 0
				AND EXISTS (SELECT 1 FROM tasks t WHERE t.pool = p.name AND t.state = 'pending')) AS candidates
		WHERE free > 0 AND name IN (
			SELECT b.pool FROM batches b JOIN pools p ON p.name = b.pool
			WHERE `+isStartableSQL()+` AND EXISTS (SELECT 1 FROM tasks t WHERE t.batch = b.id AND t.state = 'pending'))`)
	if err != nil {
		return nil, fmt.Errorf("reading pools with free slots: %w", err)
	}
	return pools, nil
}

// CountWaitingDevices counts the devices that could be granted a task of the pool now, hold no slot, and have reported within the period
// seenWithin before now. Silence that was ordered (Device.QuietUntil) does not count. It stops counting when it reaches limit.
func (s pools) CountWaitingDevices(ctx context.Context, pool string, seenWithin time.Duration, limit int) (int, error) {
	n, err := queryOne(ctx, s.readSession(), singleColumn[int], waitingDevicesSQL(), pool, limit, seenWithin.Milliseconds())
	if err != nil {
		return 0, fmt.Errorf("counting the waiters of pool %s: %w", pool, err)
	}
	return n, nil
}

// waitingDevicesSQL returns the statement of CountWaitingDevices. It first steps through the index from device to device, over at most 1000
// + 4 * limit devices. If fewer than limit of these devices could start a task and more devices follow, it joins all tasks of the pool
// instead: to step over 200,000 devices takes Postgres 3 s, the join a tenth of that time. $1 is the pool, $2 the limit, $3 the period in
// milliseconds.
func waitingDevicesSQL() string {
	const some = "1000 + 4 * $2"
	who := devicesWithTasksCTE("$1", "n < "+some)
	return who + `
	SELECT CASE WHEN count(*) >= $2 THEN count(*) WHEN (SELECT count(*) FROM who WHERE device IS NOT NULL) < ` + some + ` THEN count(*) ELSE (
		SELECT count(*) FROM (
			SELECT DISTINCT t.device
			FROM tasks t JOIN batches b ON b.id = t.batch JOIN pools p ON p.name = t.pool JOIN devices d ON d.id = t.device
			WHERE t.pool = $1 AND t.state = 'pending' AND ` + isEligibleSQL() + ` AND d.quiet_until > {now} - $3 * {ms}
				AND NOT EXISTS (SELECT 1 FROM grants g WHERE g.device = t.device)
			LIMIT $2) AS joined) END
	FROM (` + startableDevicesSQL("$1", "$2", "(SELECT d.quiet_until FROM devices d WHERE d.id = who.device) > {now} - $3 * {ms}") + `) AS waiting`
}

// TakeIdleTime returns the time since the last call by any replica. So the results of all replicas add up to the whole time, and no moment
// is counted twice. If less than minElapsed has passed since the last call, it returns 0, and the next call counts from the same time as
// this one.
func (s pools) TakeIdleTime(ctx context.Context, minElapsed time.Duration) (time.Duration, error) {
	var from, until time.Time
	err := s.write(ctx, func(tx session) error {
		t, err := queryOne(ctx, tx, func(t *[2]time.Time) []any { return []any{instant{&t[0]}, instant{&t[1]}} }, `
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
