// Package dispatcher holds the decisions: who may start, what becomes of a
// task, which places are taken back.
//
// HandleReport answers one device report, over any transport. Reap, Reconcile
// and Expire are single passes over the background work; they are idempotent
// and safe on every replica at once, so there is no leader.
//
// Guarantees: a grant is committed to the ledger before a device can see it; a
// result is acknowledged only after its transaction committed; what cannot be
// confirmed is not granted. The semaphore decides fast and may be wrong, the
// ledger has the last word.
//
// Transports, wiring and SQL live elsewhere: this package knows the ledger and
// the semaphore only through the small interfaces in ledger.go.
package dispatcher
