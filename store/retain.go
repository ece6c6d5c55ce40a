package store

import (
	"context"
	"fmt"
	"time"
)

// DeletedCounts holds the number of rows of each kind that Retain deleted.
type DeletedCounts struct {
	Events, Attempts, Results, Answers, TokenChanges, News, Minutes, Tasks, Batches int64
}

// Largest returns the largest of the counts. The numbers of tasks and of batches are added, and the sum is one of the counts.
func (r DeletedCounts) Largest() int64 {
	return max(r.Events, r.Attempts, r.Results, r.Answers, r.TokenChanges, r.News, r.Minutes, r.Tasks+r.Batches)
}

// retentionRule describes how rows of one kind are deleted when they are too old.
type retentionRule struct {
	count     *int64
	name      string
	deleteSQL string
	keep      time.Duration // how long the rows are kept; 0 means forever
}

// retentionRules returns one rule for each kind of rows. keepFor is the time for which attempts and late results are kept. A keepFor of 0 means
// forever.
func (r *DeletedCounts) retentionRules(keepFor time.Duration) []retentionRule {
	// Ids and tokens increase almost in the order of times. Each statement deletes a range of an index, up to the last expired row. It does
	// not join a list of rows, because Postgres could scan the list once for each row while its statistics show an empty table.
	const before = ` < (SELECT {now}) - $1 * {ms}`
	const old = ` AS oldest WHERE at` + before
	return []retentionRule{
		{&r.Attempts, "attempts", `
			DELETE FROM attempts WHERE token <= (SELECT max(token) FROM (SELECT token, ended_at AS at FROM attempts ORDER BY token LIMIT $2)` + old + `) AND ended_at` + before, keepFor},
		{&r.Results, "late results", `
			DELETE FROM late_results WHERE received_at <= (SELECT max(at) FROM (SELECT received_at AS at FROM late_results ORDER BY received_at LIMIT $2)` + old + `)`, keepFor},
		{&r.Answers, "answers", `
			DELETE FROM answers WHERE answered_at <= (SELECT max(at) FROM (SELECT answered_at AS at FROM answers ORDER BY answered_at LIMIT $2)` + old + `)`, answersKept},
		{&r.TokenChanges, "changes of tokens", `
			DELETE FROM token_changes WHERE (turn, hash) <= (
				SELECT turn, hash FROM (SELECT turn, hash, at FROM token_changes ORDER BY turn, hash LIMIT $2)` + old + `
				ORDER BY turn DESC, hash DESC LIMIT 1) AND at` + before, changesKept},
		{&r.News, "news", `
			DELETE FROM news WHERE id <= (SELECT max(id) FROM (SELECT id, at FROM news ORDER BY id LIMIT $2)` + old + `) AND at` + before + `
			AND id < (SELECT id FROM news ORDER BY id DESC LIMIT 1)`, newsKept},
		{&r.Minutes, "minutes of pools", `
			DELETE FROM pool_minutes WHERE minute <= (SELECT max(minute) FROM (SELECT minute FROM pool_minutes ORDER BY minute LIMIT $2) AS oldest
				WHERE minute < {this minute} - CAST($1 AS bigint) / 60000)`, minutesKept},
	}
}

// Retain deletes old rows, oldest first, at most limit rows of each kind. It deletes events, ended attempts, late results, and ended
// batches with their tasks, if they are older than keepFor. If keepFor is 0, it keeps them. Events are deleted in whole blocks (EventSeal), so
// the last block may exceed the limit. Answers, changes of tokens, news and counts per minute have other retention times, which do not depend on
// keepFor. Replicas may call Retain concurrently.
func (s *Store) Retain(ctx context.Context, keepFor time.Duration, limit int) (deleted DeletedCounts, err error) {
	for _, old := range deleted.retentionRules(keepFor) {
		if old.keep == 0 {
			continue
		}
		err := s.write(ctx, func(tx session) (err error) {
			*old.count, err = tx.exec(ctx, old.deleteSQL, old.keep.Milliseconds(), limit)
			return err
		})
		if err != nil {
			return deleted, fmt.Errorf("removing old %s: %w", old.name, err)
		}
	}
	if keepFor == 0 {
		return deleted, nil
	}
	if deleted.Events, err = s.deleteOldEvents(ctx, keepFor, limit); err != nil {
		return deleted, fmt.Errorf("removing old events: %w", err)
	}
	if deleted.Tasks, deleted.Batches, err = s.deleteOldBatches(ctx, keepFor, limit); err != nil {
		return deleted, fmt.Errorf("removing old batches: %w", err)
	}
	return deleted, nil
}
