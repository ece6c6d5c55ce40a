// Package seen collects the times at which devices reported until they are written to the ledger, and keeps a
// list in Redis of the 1,000 devices that reported last, over all replicas.
//
// The list is for display only. If Redis loses it, the next reports fill it again.
package seen
