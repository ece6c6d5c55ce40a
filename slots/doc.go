// Package slots is the semaphore: it records in Redis which of a pool's numbered slots are free, and which lease holds each held slot. Each
// decision is one atomic script in the directory lua: core.lua decides whether a slot is given, batch_order.lua and queue.lua decide which
// waiter gets it, and serve.lua performs one step of a pool.
//
// The number of held slots is not a counter, which could get out of step with the holders. It is derived from the holders, and only the
// complete id of the lease that holds a slot frees the slot.
//
// Guarantees while Redis keeps its data: No more than capacity leases are granted, and no slot number is granted twice. The end of a lease
// frees nothing by itself. If a call is sent several times, it has one effect, and each sending returns the same answer. Only a release
// returns false if an earlier sending freed the lease. If Redis does not know a pool or has lost a part of it, the pool grants nothing
// (StatusUnknown) until Restore is called.
//
// A failover of Redis can lose the latest writes while the pool stays known. The caller corrects this from its ledger, the database of its
// grants, with Snapshot, Adopt and Serve. So a decision of this package is fast, not final.
//
// All times are Redis TIME. They only determine how long an offer reserves a free slot, when a device is to ask again, and how long it stays
// in the queue. No time causes a grant beyond the capacity or frees a held slot.
package slots
