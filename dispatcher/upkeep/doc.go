// Package upkeep has the passes over the ledger and the semaphore. Reap ends the grants whose lease has ended. Reconcile and FollowChanges
// make the semaphore agree with the ledger. Each pass may run on all replicas concurrently, so there is no leader. If a pass fails, its
// work so far stays done, and the next pass continues.
package upkeep
