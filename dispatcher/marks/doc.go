// Package marks knows which devices have no work, so that their reports cost the ledger nothing.
//
// Each device with an open task has a mark in Redis; most devices of a fleet have none. Each change that creates work adds a row to the
// news of the ledger, in the order of the commits, and each replica marks the devices of new rows. The marks are spread over hashes. A hash
// also stores the position in the news that its marks include, so that Redis loses both together if it loses data.
//
// A missing mark is trusted only if the position of its hash is not behind the news that this replica read some seconds ago or wrote
// itself. So a mark that is missing wrongly is trusted for five seconds at most. A superfluous mark costs one read of the ledger, which
// removes it.
//
// A mark only says that a device has an open task, even if the task is not due yet, paused or limited.
package marks
