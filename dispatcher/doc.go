// Package dispatcher answers the reports of devices. It handles the parts of a report in this order: results, running tasks, redelivery,
// and the next task or a refusal. HandleReport answers at once; HandleWaiting may park the report until there is a task.
//
// Guarantees: A grant is committed to the ledger before a device can receive it. A result is acknowledged only after its transaction is
// committed. If the ledger does not confirm that a slot is free, the slot is not granted. The semaphore proposes slots fast and may be
// wrong; the ledger decides.
//
// A Dispatcher composes the packages that have a state of their own; The interfaces in ledger.go are the parts of the ledger and the
// semaphore that these packages use. Package decision decides what a device may do next.
//
// A devices.Caller is the sender of a report. Everywhere else, a caller is a program that leases a slot; its requests are handled like
// reports (leases.go).
package dispatcher
