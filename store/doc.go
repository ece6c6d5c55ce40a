// Package store keeps the ledger: pools, batches, tasks, grants, attempts,
// devices, tokens and events, on Postgres (production) and SQLite (embedded).
//
// The ledger has the last word on which device holds a slot. A grant occupies one
// numbered slot of one pool, and the unique keys of the grants table (task,
// device, pool+slot) make a second grant of the same number impossible,
// whatever Redis or a replica believes. A task is "dispatched" exactly while
// it has a row in grants.
//
// Guarantees: every change is one transaction; what a method reports as done
// is committed. An error wrapping ErrOutcomeUnknown means that a COMMIT was
// sent and its answer never came: the caller must act as if both could be
// true. All times are the database's clock, never the caller's.
//
// A Store is its parts, one for each noun of the ledger, on one connection: pools,
// batches, tasks, grants, devices, profiles, credentials, events and replicas. Their
// files begin with the noun. The ledger as a whole is in store, warm, retain
// and restore.
//
// Below them: connection begins and ends sessions; session runs statements, those of a
// noun by its name, as in tx.tasks().cancel; dialect, prepared, once, snapshot, step,
// query and scan are what it needs; dialer and pulse are the network.
//
// Limits: SQLite serves one process (one writer); Postgres is the production
// promise. Both run one code path; what differs is in dialect.go.
package store
