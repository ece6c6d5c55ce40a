// Package dispatcher answers the reports of devices. It handles the parts of a report in this order: results, running tasks, redelivery,
// and the next task or a refusal. HandleReport answers at once. HandleWaiting may park the report until there is a task.
//
// The package guarantees: A grant is committed to the ledger before a device can receive it. A result is acknowledged only after its
// transaction is committed. A slot is granted only if the ledger confirms that it is free. The semaphore proposes slots fast and may be
// wrong. The ledger decides.
//
// A Dispatcher consists of the packages below it that keep state. The interfaces in ledger.go are the parts of the ledger and the semaphore
// that these packages use. Package decision decides what a device may do next.
//
// A devices.Caller is the sender of a report. Everywhere else, a caller is a program that leases a slot. Its requests are handled like
// reports (leases.go).
package dispatcher
