// Package dispatcher answers the reports of devices. It handles the parts of a report in this order: results, running tasks, redelivery,
// and the next task or a refusal.
//
// HandleReport answers at once. HandleWaiting may park the report until there is a task. A Dispatcher composes the packages that have a
// state of their own, and exposes them as fields: Waiters (notifies devices of free slots), Policies, Devices (credentials), Seen and
// Upkeep (the passes). Its Explainer explains why tasks wait. Package decision decides what a device may do next.
//
// Guarantees: A grant is committed to the ledger before a device can receive it. A result is acknowledged only after its transaction is
// committed. A slot that cannot be confirmed is not granted. The semaphore decides fast and may be wrong; the ledger has the last word.
//
// Other packages contain the transports, the start of the process and the SQL. This package uses the ledger and the semaphore only through
// the small interfaces in ledger.go. If a replica has too many reports, the transports refuse some of them (reason busy_server) before this
// package receives them.
//
// A devices.Caller is the sender of a report. In all other names, a caller is a program that leases a slot; its requests are handled like
// reports (leases.go).
package dispatcher
