package store

import (
	"encoding/json"
	"time"
)

// Batch is what an operator queued in one request: tasks that share a pool,
// a kind and their rules.
type Batch struct {
	ID      int64
	Name    string
	Pool    string
	Kind    string
	Payload json.RawMessage // for tasks without their own; nil = none

	Priority int // of its tasks, unless they have their own; higher first
	Weight   int // share among the batches of a pool, >= 1

	NotBefore *time.Time // nil = at once
	NotAfter  *time.Time // pending tasks expire then; nil = never

	MaxAttempts  int           // counted attempts, >= 1
	RetryOn      []string      // causes retried: "failed", "timed_out"
	RetryBackoff time.Duration // before the second attempt; doubles, jittered
	OnLost       string        // "retry" or "fail": when a lease lapsed
	Lease        time.Duration // 0 = the pool's
	MaxRun       time.Duration // renewals end there; 0 = 1 h

	Paused      bool
	CancelledAt *time.Time
	CreatedAt   time.Time

	Total  int64
	Counts map[TaskState]int64 // exact; adds up to Total. Filled by Batch and Batches.
}
