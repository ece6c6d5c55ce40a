// Package slots is the semaphore. It records in Redis which of a pool's numbered slots are free, and which lease holds each held slot. Each
// decision is one atomic script in the directory lua. core.lua decides whether a slot is given. batch_order.lua and queue.lua decide which
// waiter gets it. turn.lua decides when a waiter must ask again. serve.lua performs one step of a pool.
//
// The number of held slots is the number of holders. It is not a counter, because a counter could differ from the holders. A slot is freed
// only with the complete id of the lease that holds it.
//
// While Redis keeps its data, the package guarantees: No more than capacity leases are granted, and no slot number is granted twice. The end
// of a lease frees nothing by itself. A call that is sent several times has one effect, and each sending returns the same answer. There is one
// exception: a repeated release returns false, because the earlier sending freed the lease. If Redis does not know a pool or has lost a part
// of it, the pool grants nothing (StatusUnknown) until Restore is called.
//
// A failover of Redis can lose the latest writes although the pool stays known. The caller corrects this from its ledger, the database of its
// grants, with Snapshot, Adopt and Serve. So a decision of this package is fast, but not final.
//
// All times are Redis TIME. They only determine how long an offer reserves a free slot, when a device must ask again, and how long a device
// stays in the queue. No time causes a grant beyond the capacity or frees a held slot.
package slots
