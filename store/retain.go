package store

import (
	"context"
	"fmt"
	"time"
)

// Retained says how many rows a pass of Retain removed.
type Retained struct {
	Events, Attempts, Results, Answers, TokenChanges, News, Minutes, Tasks, Batches int64
}

// Most is the largest of the counts; tasks and batches are one.
func (r Retained) Most() int64 {
	return max(r.Events, r.Attempts, r.Results, r.Answers, r.TokenChanges, r.News, r.Minutes, r.Tasks+r.Batches)
}

// oldRows are rows of one kind that are removed when they are old enough.
type oldRows struct {
	count *int64
	name  string
	text  string
	keep  time.Duration // 0: for ever
}

// kinds are those of which each row is looked at by itself.
func (r *Retained) kinds(keep time.Duration) []oldRows {
	return []oldRows{
		// Ids and tokens go up with time, nearly: the oldest rows are at the front.
		{&r.Events, "events", `
			DELETE FROM events WHERE id IN (
				SELECT id FROM (SELECT id, at FROM events ORDER BY id LIMIT $2) AS oldest WHERE at < {now} - $1 * {ms})`, keep},
		{&r.Attempts, "attempts", `
			DELETE FROM attempts WHERE token IN (
				SELECT token FROM (SELECT token, ended_at FROM attempts ORDER BY token LIMIT $2) AS oldest WHERE ended_at < {now} - $1 * {ms})`, keep},
		{&r.Results, "late results", `
			DELETE FROM late_results WHERE (device, task, token) IN (
				SELECT device, task, token FROM late_results WHERE received_at < (SELECT {now}) - $1 * {ms} ORDER BY received_at LIMIT $2)`, keep},
		{&r.Answers, "answers", `
			DELETE FROM answers WHERE (owner, key) IN (
				SELECT owner, key FROM answers WHERE answered_at < (SELECT {now}) - $1 * {ms} ORDER BY answered_at LIMIT $2)
			AND answered_at < {now} - $1 * {ms}`, answersKept},
		{&r.TokenChanges, "changes of tokens", `
			DELETE FROM token_changes WHERE (turn, hash) IN (
				SELECT turn, hash FROM (SELECT turn, hash, at FROM token_changes ORDER BY turn LIMIT $2) AS oldest WHERE at < {now} - $1 * {ms})`, changesKept},
		{&r.News, "news", `
			DELETE FROM news WHERE id IN (
				SELECT id FROM (SELECT id, at FROM news ORDER BY id LIMIT $2) AS oldest WHERE at < {now} - $1 * {ms})
			AND id < (SELECT max(id) FROM news)`, newsKept},
		{&r.Minutes, "minutes of pools", `
			DELETE FROM pool_minutes WHERE (pool, minute) IN (
				SELECT pool, minute FROM pool_minutes WHERE minute < {this minute} - CAST($1 AS bigint) / 60000 ORDER BY minute LIMIT $2)`, minutesKept},
	}
}

// Retain removes, of each kind, up to limit of the oldest rows that are older
// than keep, in a transaction for each kind: events, ended attempts, results
// that could not be used, answers to idempotency keys, changes of tokens, news and minutes
// of pools after their own time, and batches that ended, with their tasks. Replicas may call it at once.
func (s *Store) Retain(ctx context.Context, keep time.Duration, limit int) (r Retained, err error) {
	for _, old := range r.kinds(keep) {
		if old.keep == 0 {
			continue
		}
		err := s.write(ctx, func(tx session) (err error) {
			*old.count, err = tx.exec(ctx, old.text, old.keep.Milliseconds(), limit)
			return err
		})
		if err != nil {
			return r, fmt.Errorf("removing old %s: %w", old.name, err)
		}
	}
	if keep == 0 {
		return r, nil
	}
	if r.Tasks, r.Batches, err = s.retainBatches(ctx, keep, limit); err != nil {
		return r, fmt.Errorf("removing old batches: %w", err)
	}
	return r, nil
}
