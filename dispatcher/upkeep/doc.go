// Package upkeep has the passes over the ledger and the semaphore. Reap ends the grants whose lease has
// ended. Reconcile and Follow make the semaphore agree with the ledger. Other passes move batches and windows
// on with time, count, and delete old history.
//
// Each pass is idempotent and may run on all replicas concurrently, so there is no leader. If a pass fails,
// the work that it has done stays done, and the next pass continues.
package upkeep
