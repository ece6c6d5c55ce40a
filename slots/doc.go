// Package slots is the semaphore. It records in Redis which of a pool's numbered slots are free, and which lease holds each held slot. Each
// decision is one atomic script in the directory lua. core.lua decides whether a slot is given. batch_order.lua and queue.lua decide which
// waiter gets it. turn.lua decides when a waiter must ask again. serve.lua performs one step of a pool.
//
// The number of held slots is the number of holders. It is not a counter, because a counter could differ from the holders. A slot is freed
// only with the complete id of the lease that holds it. The end of a lease frees nothing: the caller must release the lease.
//
// While Redis keeps its data, no more than capacity leases are granted, and no slot number is granted twice. A pool is unknown if it is new or
// lost one of the four keys of core.lua. It then grants nothing (StatusUnknown) until Restore is called. A lost key of the queue only delays
// grants.
//
// A call that is sent several times has one effect. If no other call changes the pool in between, each sending returns the same answer, with
// two exceptions: a repeated release returns false, and an unsent offer is returned again only after 500 ms.
//
// A failover of Redis can lose the latest writes although the pool stays known. The caller corrects this from its ledger, the database of its
// grants, with Snapshot, Adopt and Serve. So a decision of this package is fast, but not final.
//
// All times are Redis TIME. They only determine how long an offer reserves a free slot, when a device must ask again, and how long a device
// stays in the queue. No time causes a grant beyond the capacity or frees a held slot.
package slots
