// Package decision decides what a device may do next. The answer to a report, `why`, the pages and the metrics all use this decision.
//
// The decision consists of two tables. The rules (deviceRules, taskRules) list all obstacles between a task and its start. waitRules lists
// how a device waits, for each reason that a device is given. A new obstacle needs a Code, a row of the rules and a row of codeTexts. A new
// reason needs a devices.Reason and a row of waitRules. The SQL of the ledger repeats a part of the rules (isEligibleSQL in package store).
//
// An Obstacle keeps a task from its start, and has a Code. A Cause describes an obstacle, or another fact about a task, for people. The
// API calls causes `reasons`. In this package, a reason (devices.Reason) is sent to the device. Several codes share one reason.
//
// All functions are pure. A decision is valid for the time of its input. The semaphore and the ledger have the last word.
package decision
