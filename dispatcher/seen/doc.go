// Package seen keeps when devices reported: the times that are on their way to the
// ledger, and in Redis a list of the 1,000 devices that were seen last, over all
// replicas.
//
// The list is a view to look at: when Redis loses it, it fills again with the next reports.
package seen
