// Package policies checks the policies of pools, batches and profiles: how often tasks may start, and how
// many may start at once. Package limits keeps the counts in Redis.
//
// A Checker reserves a start before the semaphore is asked for a slot, and settles the reservation when the
// outcome of the start is known. If a replica could not settle a reservation, a pass of any replica settles
// it from the ledger. If the policies of a task cannot be checked, the task does not start, unless all its
// policies allow that (on_error: open).
//
// Sets decides the takes of callers by the policies of limit sets, which it keeps in memory. Redis alone
// counts takes, so a take causes no read or write in the ledger.
package policies
