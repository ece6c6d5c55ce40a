// Package decision decides what a device may do next. The answer to a report, `why`, the pages and
// the metrics all use the same decision.
//
// The decision consists of two tables. The rules (deviceRules, taskRules) list all obstacles between a task and its start. waitRules lists
// the reasons that a device is given, and for each reason how the device waits.
//
// A new obstacle needs a Code, a row of the rules and a row of codeTexts. It needs a row of waitRules only if the device is given a new
// reason. The ledger checks the conditions that it knows a second time, in its SQL (isEligibleSQL in package store), which claims and
// matching use.
//
// Terms: an Obstacle keeps a task from its start, and has a Code. A Cause describes an obstacle, or
// another fact about the state of a task, for people. A reason (devices.Reason) is what the reply
// tells the device: several codes share one reason.
//
// Everything here is pure: plain values in, plain values out. A decision is valid for the time of
// its input; the semaphore and the ledger have the last word.
package decision
