package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

const (
	// deviceAttemptsSpan is the time whose attempts AttemptsByDevice counts if the caller names none.
	deviceAttemptsSpan = time.Hour
	// deviceEventsRead is the number of the pool's newest events that AttemptsByDevice reads. It bounds the cost in a busy pool.
	deviceEventsRead = 10_000
)

// DeviceAttempts counts the attempts of one device that ended.
type DeviceAttempts struct {
	Ended, Failed int
	Tags          map[string]string // present tags; nil if the device is not registered
	Attributes    json.RawMessage   // present attributes, a JSON object; nil if the device is not registered
}

// AttemptsByDevice calls handle once for each device with attempts of a pool or a batch that ended at the time since or later. If since is
// zero, it counts the attempts of the last hour. It reads at most the newest deviceEventsRead events of the pool. isSample is true if more
// attempts ended in this time.
func (s pools) AttemptsByDevice(ctx context.Context, scope TaskScope, since time.Time, handle func(DeviceAttempts)) (isSample bool, err error) {
	pool, err := tasks(s).scopePool(ctx, scope)
	if err != nil {
		return false, fmt.Errorf("reading attempts by device: %w", err)
	}
	type row struct {
		DeviceAttempts

		read int // number of events that were read; 0 in the row of a device
	}
	search, q := eventSearch{EventFilter: EventFilter{Newest: true}, pool: pool.Name}, &query{}
	candidates, from := search.candidatesSQL(q, deviceEventsRead), `{now} - `+fmt.Sprint(deviceAttemptsSpan.Milliseconds())+` * {ms}`
	if !since.IsZero() {
		from = `{epoch} + CAST(` + q.arg(since.UnixMilli()) + ` AS bigint) * {ms}`
	}
	err = forEach(ctx, s.customPlanSession(), func(r *row) []any {
		return []any{&r.read, &r.Ended, &r.Failed, &r.Tags, &r.Attributes}
	}, func(r row) bool {
		if r.read > 0 {
			isSample = r.read == deviceEventsRead
		} else if r.Ended > 0 {
			handle(r.DeviceAttempts)
		}
		return true
	}, `
		WITH looked AS MATERIALIZED (SELECT device, batch, kind, token FROM (`+candidates+`) AS newest WHERE at >= `+from+`),
		ended AS (
			SELECT device, count(*) AS n, sum(CASE WHEN `+isFailureEventSQL+` THEN 1 ELSE 0 END) AS failed FROM looked
			WHERE `+isHoldingEndSQL+` AND CAST(`+q.arg(scope.Batch)+` AS bigint) IN (0, batch) GROUP BY device)
		SELECT 0, t.n, t.failed, d.tags, d.attributes FROM ended t {device of t}
		UNION ALL SELECT count(*), 0, 0, NULL, NULL FROM looked`, q.args...)
	if err != nil {
		return false, fmt.Errorf("reading attempts by device of pool %s: %w", pool.Name, err)
	}
	return isSample, nil
}
