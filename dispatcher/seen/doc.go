// Package seen collects the times at which devices reported, and writes them to the ledger: the time of a device that only polls about once a
// minute (store.SeenPrecision), and the time of any other device every ten seconds. A change of the way to notify a device (its reach) is
// written within a second. A crash loses the times that were not written, but the next reports replace them.
//
// The package also counts the uses of operator tokens, and keeps a list in Redis of the 1,000 devices that reported last, to any replica. The
// list is for display only. If Redis loses the list, the next reports fill it again.
package seen
