// Package upkeep has the passes over the ledger and the semaphore. Reap ends the grants whose lease has
// ended. Reconcile and FollowChanges make the semaphore agree with the ledger. Other passes end expired
// tasks and tasks of cancelled batches, refresh windows, fold, count idle slots and events, and delete old
// history.
//
// Each pass is idempotent and may run on all replicas concurrently, so there is no leader. If a pass fails,
// the work that it has done stays done, and the next pass continues.
package upkeep
