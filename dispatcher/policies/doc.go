// Package policies checks the policies of pools, batches and profiles: how often tasks may start. Package limits keeps the counts in Redis.
//
// A Checker reserves a start before the semaphore is asked for a slot, and settles the reservation when the outcome is known, or a pass of
// any replica settles it from the ledger. A task whose policies cannot be checked does not start, unless all its policies allow that
// (on_error: open).
//
// Sets decides the takes of callers by the policies of limit sets, which it keeps in memory. Redis alone counts takes, so a take costs the
// ledger nothing.
package policies
