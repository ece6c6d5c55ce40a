// Package decision is the one judgement of what a device may do next. The answer
// to a report, `why`, the pages and the metrics are all made from it.
//
// Two tables hold it. rules lists all that can stand between a task and its start;
// waitings lists the reasons that a device is given, and what follows from each.
// A new reason is a new row.
//
// Everything here is pure: plain values in, plain values out. It decides for the
// moment of the values it is given; the semaphore and the ledger have the last word.
package decision
