// Package marks keeps in Redis which devices have work, so that a report of a device without work needs no read of the ledger.
//
// Each device with an open task has a mark, even if the task is not due yet, paused or limited. Each change that creates work adds a row to
// the news of the ledger, in the order of the commits, and each replica marks the devices of new rows. The marks are spread over hashes. A
// hash also stores the position in the news that its marks include. If Redis loses data, it loses the marks and this position together.
//
// A missing mark is trusted only if its hash includes the news that this replica read some seconds ago or wrote itself. So a mark that is
// missing by mistake is trusted for at most five seconds. A superfluous mark costs one read of the ledger, after which it is deleted.
//
// A mark can also record a Wait: the device has tasks only in one pool, and waits for a slot of this pool. A wait ends when its time (Until)
// has come, when the device is marked again, when there are news of the pool or of all pools, or when the device gets a grant (EndWaits). So
// each change that may let a device wait for another reason must add news (store.News). Then the old wait is trusted for at most five
// seconds.
package marks
