// Package policies checks the policies of pools, batches and profiles: how often tasks may start. Package limits keeps the counts in Redis.
//
// A Checker reserves a start before a slot is acquired, and settles the reservation when it knows whether the task started. If the replica
// dies before that, a pass of any replica settles the reservation from the ledger. A task whose policies cannot be checked does not start,
// unless all its policies have on_error: open.
//
// If several policies refuse a start, the metrics and the log name each of them. The obstacle of the task (package decision) and the reply to
// the report name only the policy that refuses longest.
//
// A policy of a profile counts in each pool separately. After a loss of Redis, the policies of a pool, of each batch and of each profile are
// rebuilt separately, each time from the starts of the whole pool.
//
// Sets decides the takes of callers by the policies of limit sets, which it keeps in memory. Only Redis counts takes. The ledger does not.
package policies
