// Package policies checks the policies of pools, batches and profiles: how often tasks may start. Package limits keeps the counts in Redis.
//
// A Checker reserves a start before a slot is acquired, and settles the reservation when it knows whether the task started. If the replica
// dies before that, a pass of any replica settles the reservation from the ledger. A task whose policies cannot be checked does not start,
// unless all its policies have on_error: open.
//
// Sets decides the takes of callers by the policies of limit sets, which it keeps in memory. Only Redis counts takes. The ledger does not.
package policies
