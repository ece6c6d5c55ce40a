// Package decision decides what a device may do next. The answer to a report, `why`, the pages and the metrics all use this decision.
//
// It consists of two tables: the rules (deviceRules, taskRules) list all obstacles between a task and its start, and waitRules lists, for
// each reason that a device is given, how the device waits. A new obstacle needs a Code, a row of the rules and a row of codeTexts. The
// ledger checks the conditions that it knows a second time, in its SQL (isEligibleSQL in package store).
//
// Terms: an Obstacle keeps a task from its start, and has a Code. A Cause describes an obstacle, or another fact about a task, for people.
// A reason (devices.Reason) is sent to the device: several codes share one reason.
//
// Everything here is pure. A decision is valid for the time of its input; the semaphore and the ledger have the last word.
package decision
