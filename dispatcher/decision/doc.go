// Package decision decides what a device may do next. The answer to a report, `why`,
// the pages and the metrics all use the same decision.
//
// The decision consists of two tables. The rules (deviceRules, taskRules) list all
// obstacles between a task and its start. waitings lists the reasons that a device is
// given, and how the device waits for each reason. A new reason is a new row.
//
// Everything here is pure: plain values in, plain values out. A decision is valid for
// the time of its input; the semaphore and the ledger have the last word.
package decision
