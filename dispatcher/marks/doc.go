// Package marks says which devices have nothing to do, so that their reports cost the ledger
// nothing.
//
// Each device with an open task has a mark in Redis; most of a fleet has none. The marks
// follow the ledger: what makes work adds a row to its news, in the order of the commits, and
// each replica marks the devices of new rows. How far a hash of marks has come (upto) is
// written in the same key, in the same step, so that whatever Redis loses or rolls back, it
// loses both. That a device has no mark is believed only if upto is not behind the news that
// this replica read some seconds ago, or wrote itself. So a missing mark is believed for five
// seconds at most; a false one costs one look at the ledger, which takes it away.
//
// Limits: marks are about work alone. A task that is not due yet, paused or limited is open, too.
package marks
