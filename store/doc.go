// Package store keeps the ledger: pools, batches, tasks, grants, attempts, devices, tokens and events. It runs on Postgres (production) and
// on SQLite (embedded).
//
// The ledger has the last word on which device holds a slot. A grant occupies one numbered slot of one pool. The unique keys of the table
// grants (task, device, pool+slot) make a second grant of the same slot impossible, whatever Redis or a replica assumes. A task is
// "dispatched" exactly while it has a row in grants.
//
// Guarantees: every change is one transaction, and a change that a method reports as done is committed. An error that wraps
// ErrOutcomeUnknown means that a COMMIT was sent and its answer was lost: the change may or may not be in force, and the caller must handle
// both cases. All times are from the database's clock, never from the caller's.
//
// A Store combines several parts on one connection, one for each noun of the ledger: pools, batches, tasks, grants, devices, profiles,
// credentials, events and replicas. The names of their files begin with the noun. Operations on the whole ledger are in store.go, warm.go,
// retain.go and restore.go.
//
// The layers below these parts: connection.go begins and ends sessions. session.go runs statements; the statements on a noun are methods
// under its name, as in tx.tasks().cancel. Their helpers are dialect.go, prepared.go, once.go, snapshot.go, step.go, query.go and scan.go.
// dialer.go and pulse.go handle the network.
//
// Limits: SQLite serves one process (one writer). Only Postgres is supported for production. Both databases run the same code path; the
// differences are in dialect.go.
package store
