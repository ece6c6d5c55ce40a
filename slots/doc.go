// Package slots is the semaphore: which of a pool's numbered slots is free, and
// which lease holds each of the others. It lives in Redis, one atomic script per
// decision, and knows pools, leases and devices by name only.
//
// A count of running work that is kept beside the work drifts from it: it
// expires while holders run, or never expires, or is decremented twice. Here
// the count is derived from the holders, each with its own lease, and a slot is
// freed only by the whole lease id that holds it.
//
// Guarantees, while Redis keeps its data: no more than capacity leases are
// granted, and no number twice; the end of a lease frees nothing by itself; every
// call may be sent again, by this package or the client under it, with one effect
// and the same answer. A pool that Redis does not know, or of which it lost a
// part, grants nothing (StatusUnknown) until Restore. Data that Redis loses on a
// failover the ledger must make up for: this package decides fast, not finally.
//
// Another program that wants a slot or none needs a Redis and Open; the package's Example is
// all of it. It releases what it acquired, and finds by Snapshot what a process that died
// holds. A program with a ledger of its own uses Semaphore, which has a queue, too, and
// restores a pool from that ledger.
//
// All times are Redis TIME. They are hints for people and for scheduling; no
// decision here depends on a clock.
package slots
