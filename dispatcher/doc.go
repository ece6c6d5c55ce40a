// Package dispatcher answers the reports of devices. It handles the parts of a report in this order: results, running tasks, attributes,
// redelivery, and the next task or a refusal. HandleReport answers at once. HandleWaiting may park the report until there is a task.
//
// The package guarantees: A grant is committed to the ledger before a device can receive it. A result is acknowledged only after its
// transaction is committed. A slot is granted only if the ledger confirms that it is free, and that the device holds no grant. The semaphore
// proposes slots fast and may be wrong.
//
// Package decision decides what a device may do next. A Dispatcher consists of the packages below it that keep state. ledger.go has the parts
// of the ledger and the semaphore that they use.
//
// Comments call a devices.Caller the sender of a report. A caller is a program that leases a slot. Its requests are handled like reports
// (leases.go).
package dispatcher
