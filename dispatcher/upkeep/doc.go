// Package upkeep has the passes over the ledger and the semaphore: leases that ended are
// taken back (Reap), the semaphore is brought back to what the ledger says (Reconcile,
// Follow), batches and windows move on with time, and old history goes.
//
// Each pass is idempotent and safe on every replica at once, so there is no leader.
// A pass that fails leaves what it did, and the next one goes on.
package upkeep
