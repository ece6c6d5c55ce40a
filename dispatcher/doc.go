// Package dispatcher answers the reports of devices: results first, then running
// tasks, redelivery, the next task, or a refusal.
//
// HandleReport answers at once, Wait may park the report until there is a task. A
// Dispatcher composes the rooms that have a state of their own, and shows them as
// fields: Waiters (who is told of a free slot), Policies, Devices (credentials), Seen
// and Upkeep (the passes). Its Explainer explains why tasks wait. Package decision has
// the judgement.
//
// Guarantees: a grant is committed to the ledger before a device can see it; a
// result is acknowledged only after its transaction committed; what cannot be
// confirmed is not granted. The semaphore decides fast and may be wrong, the
// ledger has the last word.
//
// Transports, wiring and SQL live elsewhere: this package knows the ledger and
// the semaphore only through the small interfaces in ledger.go.
package dispatcher
