// Package policies asks what the policies of pools, batches and profiles say of tasks:
// how often, and how many at once, may start (package limits keeps the counts, in
// Redis).
//
// A Checker reserves a start before a slot is asked for, and settles it when it is known
// whether the task started. A pass of any replica
// settles from the ledger what another one could not. Where policies cannot be asked nothing
// starts, unless they say otherwise themselves (on_error: open).
//
// Sets answers the takes of callers by the policies of limit sets, which it keeps in memory.
// Takes are counted in Redis alone: a take costs the ledger nothing.
package policies
