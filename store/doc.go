// Package store keeps the ledger: pools, batches, tasks, grants, attempts, devices, tokens and events. It runs on Postgres (production) and
// on SQLite (embedded).
//
// The ledger has the last word on which device holds a slot. A grant occupies one numbered slot of one pool. The unique keys of the table
// grants (task, device, pool+slot) make a second grant of the same slot impossible, whatever Redis or a replica assumes. A task is
// "dispatched" exactly while it has a row in grants.
//
// Guarantees: Every change is one transaction. A change that a method reports as done is committed. Each method that writes may return an
// error that wraps ErrOutcomeUnknown: a COMMIT was sent and its answer was lost. Then the change may or may not be in force, and the caller
// must handle both cases. The present time is that of the database's clock. The dispatcher converts the times of reports (LastReport) and of
// the reaper (LapseCutoffs) to this clock.
//
// A task is open until it ends. An open task is either running (it has a grant) or waiting (it has none). In the table tasks every open
// task has the state 'pending', because a grant does not change its row. As a TaskState and in counts, Pending means waiting and Dispatched
// means running.
//
// A Store combines several parts on one connection, one for each kind of row: pools, batches, tasks, grants, devices, profiles,
// credentials, events, news, replicas and hawkbit. The names of the files of a part begin with the singular of its name. There is one
// exception: the leases of callers (lease.go, lease_bound.go) belong to grants. Limit sets belong to profiles (profile.go). The types Token
// and Event are in device.go. SQL that several parts use is also in pool_history.go (eventIDNear), pool_minutes.go (conditions on events) and
// pool_overview.go (likeSQL). Operations on the whole ledger are methods of Store, in store.go, warm.go, retain.go, restore.go and
// postgres_state.go.
//
// grant_view.go has the conditions for the start of a task (isEligibleSQL) and the order of a device's tasks. The dispatcher decides the state
// of a task whose grant ends (DecideTaskState).
//
// The layers below these parts: connection.go begins and ends sessions and snapshots. session.go runs statements. The statements of all parts
// are methods of session. Their helpers are in dialect.go, prepared.go, once.go, query.go and scan.go. dialer.go and ping.go handle the network.
//
// Limits: SQLite serves one process (one writer). Only Postgres is supported for production. Both databases run the same code path; the
// differences are in dialect.go.
package store
