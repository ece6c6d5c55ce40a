package store

import (
	"context"
	"fmt"
	"time"
)

const (
	recentAttemptsSpan = 5 * time.Minute
	// recentEventsRead is the number of the pool's newest events that RecentAttempts reads. It bounds the cost in a busy pool, where five
	// minutes have far more events.
	recentEventsRead = 2000
	recentErrorsKept = 5
)

// Many attempts fail if at least minFailures failed, and at least one in manyFailOneIn of those that ended.
const (
	minFailures   = 5
	manyFailOneIn = 5
)

// ManyFail reports whether so many attempts failed, of those that ended, that an operator should look.
func ManyFail(failed, ended int) bool { return failed >= minFailures && failed*manyFailOneIn >= ended }

// RecentAttempts summarizes attempts that ended within the last five minutes.
type RecentAttempts struct {
	Ended    int
	Failed   int           // of Ended: the device failed or rejected the task, or its lease ended. Some of the tasks are tried again
	Errors   []RecentError // the most frequent errors of the failed attempts, the most frequent first
	IsSample bool          // more attempts ended in this time; only the latest were read
}

// RecentError is the error of failed attempts, and their number. Text is empty if the lease ended and the device sent no error.
type RecentError struct {
	Text     string
	Attempts int
}

// RecentAttempts returns a summary of the attempts of a pool or of a batch that ended within the last five minutes. It reads the newest
// recentEventsRead events of the pool, and the failed attempts among them.
func (s pools) RecentAttempts(ctx context.Context, scope TaskScope) (recent RecentAttempts, err error) {
	pool := scope.Pool
	if scope.Batch != 0 {
		if pool, err = queryOne(ctx, s.readSession(), singleColumn[string], `SELECT pool FROM batches WHERE id = $1`, scope.Batch); err != nil {
			return recent, fmt.Errorf("reading the pool of batch %d: %w", scope.Batch, err)
		}
	}
	type row struct {
		group recentGroup
		text  string
		n     int
	}
	search, q := eventSearch{EventFilter: EventFilter{Newest: true}, pool: pool}, &query{}
	candidates := search.candidatesSQL(q, recentEventsRead)
	rows, err := collect(ctx, s.customPlanSession(), func(r *row) []any { return []any{&r.group, &r.text, &r.n} }, `
		WITH looked AS MATERIALIZED (SELECT token, batch, kind FROM (`+candidates+`) AS newest WHERE at >= {now} - `+fmt.Sprint(recentAttemptsSpan.Milliseconds())+` * {ms}),
		ended AS (
			SELECT token, CASE WHEN `+isFailureEventSQL+` THEN 1 ELSE 0 END AS failed FROM looked
			WHERE `+isHoldingEndSQL+` AND CAST(`+q.arg(scope.Batch)+` AS bigint) IN (0, batch))
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

// recentGroup says what a row of the statement in RecentAttempts counts.
type recentGroup int

const (
	groupOther  recentGroup = iota // attempts that ended without a failure
	groupFailed                    // failed attempts with one error
	groupRead                      // all events that were read
)
