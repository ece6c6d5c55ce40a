package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

const (
	recentAttemptsSpan = 5 * time.Minute
	// recentEventsRead is the number of the pool's newest events that RecentAttempts reads. A busy pool has far more events in five minutes.
	recentEventsRead = 2000
	recentErrorsKept = 5
)

// Many attempts failed if at least minFailures attempts failed, and if at least one in manyFailOneIn of the ended attempts failed.
const (
	minFailures   = 5
	manyFailOneIn = 5
)

// ManyAttemptsFailed reports whether so many of the ended attempts failed that an operator should look for the cause.
func ManyAttemptsFailed(failed, ended int) bool {
	return failed >= minFailures && failed*manyFailOneIn >= ended
}

// RecentAttempts summarizes attempts that ended within the last five minutes.
type RecentAttempts struct {
	Ended    int
	Failed   int           // the attempts in Ended whose device failed or rejected the task, or whose lease ended. Some of these tasks are tried again
	Errors   []RecentError // the most frequent errors of the failed attempts, the most frequent first
	IsSample bool          // more attempts ended in the five minutes; only the latest were read
}

// RecentError is an error text, and the number of failed attempts with this text. Text is empty if the lease ended and the device sent no
// error.
type RecentError struct {
	Text     string
	Attempts int
}

// RecentAttempts summarizes the attempts of a pool or a batch among the newest recentEventsRead events of the pool.
func (s pools) RecentAttempts(ctx context.Context, scope TaskScope) (recent RecentAttempts, err error) {
	pool := scope.Pool
	if scope.Batch != 0 {
		if pool, err = queryOne(ctx, s.readSession(), singleColumn[string], `SELECT pool FROM batches WHERE id = $1`, scope.Batch); err != nil {
			return recent, fmt.Errorf("reading the pool of batch %d: %w", scope.Batch, err)
		}
	}
	type row struct {
		group int
		text  string
		n     int
	}
	search, q := eventSearch{EventFilter: EventFilter{Newest: true}, pool: pool}, &query{}
	candidates := search.candidatesSQL(q, recentEventsRead)
	rows, err := collect(ctx, s.customPlanSession(), func(r *row) []any { return []any{&r.group, &r.text, &r.n} }, `
		WITH looked AS MATERIALIZED (SELECT token, batch, kind FROM (`+candidates+`) AS newest WHERE at >= {now} - `+fmt.Sprint(recentAttemptsSpan.Milliseconds())+` * {ms}),
		ended AS (
			SELECT token, CASE WHEN `+isFailureEventSQL+` THEN 1 ELSE 0 END AS failed FROM looked
			WHERE `+isHoldingEndSQL+` AND CAST(`+q.addArg(scope.Batch)+` AS bigint) IN (0, batch))
		SELECT failed, coalesce(a.error, '') AS text, count(*) AS n FROM ended e LEFT JOIN attempts a ON e.failed = 1 AND a.token = e.token GROUP BY failed, text
		UNION ALL SELECT 2, '', count(*) FROM looked
		ORDER BY 1, 3 DESC, 2`, q.args...)
	if err != nil {
		return recent, fmt.Errorf("reading the recent attempts of pool %s: %w", pool, err)
	}
	for _, r := range rows {
		switch r.group {
		case groupRead:
			recent.IsSample = r.n == recentEventsRead
			continue
		case groupFailed:
			recent.Failed += r.n
			if len(recent.Errors) < recentErrorsKept {
				recent.Errors = append(recent.Errors, RecentError{r.text, r.n})
			}
		}
		recent.Ended += r.n
	}
	return recent, nil
}

// The groups of rows that the statement in RecentAttempts returns. Group 0 has the attempts that ended without a failure.
const (
	groupFailed = 1 // failed attempts with one error
	groupRead   = 2 // all events that were read
)

const (
	// deviceAttemptsSpan is the period that AttemptsByDevice covers if since is zero.
	deviceAttemptsSpan = time.Hour
	// deviceEventsRead is the number of the pool's newest events that AttemptsByDevice reads. The limit bounds the cost in a busy pool.
	deviceEventsRead = 10_000
)

// DeviceAttempts counts the ended attempts of one device.
type DeviceAttempts struct {
	Ended, Failed int
	Tags          map[string]string // present tags; nil if the device is not registered
	Attributes    json.RawMessage   // present attributes, a JSON object; nil if the device is not registered
}

// AttemptsByDevice counts the attempts of a pool or a batch that have ended since a point in time (since), and calls handle once for each
// device. If since is zero, it covers the last hour. It reads only the newest deviceEventsRead events of the pool. isSample is true if the
// period has more events.
func (s pools) AttemptsByDevice(ctx context.Context, scope TaskScope, since time.Time, handle func(DeviceAttempts)) (isSample bool, err error) {
	pool, err := tasks(s).readScopePool(ctx, scope)
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
		from = `{epoch} + CAST(` + q.addArg(since.UnixMilli()) + ` AS bigint) * {ms}`
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
			WHERE `+isHoldingEndSQL+` AND CAST(`+q.addArg(scope.Batch)+` AS bigint) IN (0, batch) GROUP BY device)
		SELECT 0, t.n, t.failed, d.tags, d.attributes FROM ended t {device of t}
		UNION ALL SELECT count(*), 0, 0, NULL, NULL FROM looked`, q.args...)
	if err != nil {
		return false, fmt.Errorf("reading attempts by device of pool %s: %w", pool.Name, err)
	}
	return isSample, nil
}
