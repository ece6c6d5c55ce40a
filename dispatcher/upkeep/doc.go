// Package upkeep has the background passes over the ledger and the semaphore. Reap ends the grants whose lease is over. Reconcile and
// FollowChanges make the semaphore agree with the ledger. All replicas may run each pass concurrently, so there is no leader. If a pass fails,
// the work that it has done stays, and the next pass continues.
package upkeep
