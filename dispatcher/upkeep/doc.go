// Package upkeep has the background passes over the ledger and the semaphore. Reap ends the grants whose lease is over. Reconcile and
// FollowChanges make the semaphore agree with the ledger. Other passes end tasks, keep counts, seal events or delete old rows. All replicas
// may run each pass concurrently, so there is no leader. If a pass fails, the work that it has done stays, and the next pass continues.
// internal/app/pass_list.go has the intervals.
package upkeep
