// Package slots is the semaphore. It records which of a pool's numbered slots are free and which lease holds each held slot. The semaphore
// is stored in Redis, and each decision is one atomic script. The package knows pools, leases and devices only by name.
//
// A counter of running work that is stored separately from the work becomes wrong: it expires while
// holders run, or it never expires, or it is decremented twice. Here the count is derived from the
// holders. Each holder has its own lease, and only the complete lease id that holds a slot frees
// the slot.
//
// Guarantees while Redis keeps its data: No more than capacity leases are granted, and no slot number is granted twice. The end of a lease
// frees nothing by itself. This package or the Redis client may send a call several times. All sendings together have one effect, and each
// returns the same answer. There is one exception: a release returns false for a lease that an earlier sending of the same call freed. If
// Redis does not know a pool or has lost a part of it, the pool grants nothing (StatusUnknown) until Restore.
//
// A failover of Redis can lose the latest writes while the pool stays known. The caller corrects
// this from its ledger, the database of its grants, with Snapshot, Adopt and Serve. So a decision of
// this package is fast, not final.
//
// The decisions are in the directory lua: core.lua decides whether a slot is given, batch_order.lua
// and queue.lua decide which waiter gets it, and serve.lua performs one step of a pool.
//
// A program that only needs a slot or a refusal, without a queue, needs a Redis and Open; the
// package's Example is complete. The program releases the slots that it acquired. Snapshot shows
// the slots that a terminated process still holds. A program with its own ledger uses Semaphore,
// which also has a queue, and restores a pool from that ledger.
//
// All times are Redis TIME. No time causes a grant beyond the capacity or frees a held slot. Times
// only determine how long an offer reserves a free slot, when a device is to ask again, and how long
// it stays in the queue. The times of a lease are only displayed.
package slots
