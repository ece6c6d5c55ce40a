// Package policies asks what the policies of pools, batches and profiles say of tasks:
// how often, and how many at once, may start (package limits keeps the counts, in
// Redis).
//
// A Checker reserves a start before a slot is asked for, and settles it when it is known
// whether the task started. What a replica reserved or started and could not settle, a
// pass of any replica finds out from the ledger. Where policies cannot be asked nothing
// starts, unless they say otherwise themselves (on_error: open).
package policies
