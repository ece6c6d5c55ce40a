// Package seen collects the times at which devices reported, and writes them to the ledger in intervals. It also keeps a list in Redis of the
// 1,000 devices that reported last, to any replica.
//
// The list is for display only. If Redis loses the list, the next reports fill it again.
package seen
