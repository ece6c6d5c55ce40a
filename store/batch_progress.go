package store

import (
	"context"
	"fmt"
	"time"
)

// Progress is the number of tasks of a batch that had ended at a given time.
type Progress struct {
	At     time.Time
	Ended  int64
	Failed int64 // failed or timed out; included in Ended
}

// addProgress adds the folded deltas (changes of counts) to the stored progress of their batches. The time since a batch began is divided
// into steps, and a batch has at most one row for each step. Steps are 5 s long at first; they become longer as the batch grows older, up
// to one day. So a batch has about 800 rows after 90 days, and then one more row each day.
const addProgress = `
	INSERT INTO batch_progress (batch, since_ms, at, ended, failed)
	SELECT batch, age / step * step, at, ended, failed FROM (
		SELECT batch, at, ended, failed, age, CASE
			WHEN age < 300000 THEN 5000 WHEN age < 3600000 THEN 30000 WHEN age < 43200000 THEN 300000
			WHEN age < 604800000 THEN 3600000 WHEN age < 7776000000 THEN 21600000 ELSE 86400000 END AS step
		FROM (SELECT batch, at, ended, failed, CASE WHEN at > began THEN {since began} ELSE 0 END AS age FROM (
			SELECT d.batch, max(d.at) AS at, sum(d.n) AS ended, sum(CASE WHEN d.state IN ('failed', 'timed_out') THEN d.n ELSE 0 END) AS failed,
				max(CASE WHEN b.not_before > b.created_at THEN b.not_before ELSE b.created_at END) AS began
			FROM ` + batchDeltasToFold + ` GROUP BY d.batch) AS moved) AS aged) AS stepped
	WHERE step > 0
	ON CONFLICT (batch, since_ms) DO UPDATE SET
		at = excluded.at, ended = batch_progress.ended + excluded.ended, failed = batch_progress.failed + excluded.failed`

// Progress returns the progress of a batch, oldest first, from its beginning up to the last fold (the pass that adds up task states). It
// reads no tasks.
func (s batches) Progress(ctx context.Context, batch int64) ([]Progress, error) {
	steps, err := collect(ctx, s.readSession(), func(p *Progress) []any { return []any{&p.At, &p.Ended, &p.Failed} },
		`SELECT at, ended, failed FROM batch_progress WHERE batch = $1 ORDER BY since_ms`, batch)
	if err != nil {
		return nil, fmt.Errorf("reading the progress of batch %d: %w", batch, err)
	}
	for i := 1; i < len(steps); i++ {
		steps[i].Ended += steps[i-1].Ended
		steps[i].Failed += steps[i-1].Failed
	}
	return steps, nil
}
