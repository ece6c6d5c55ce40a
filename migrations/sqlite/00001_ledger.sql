-- +goose Up
-- All times are milliseconds since 1970.

-- Pools: numbered slots, with the rules for all tasks that run in them.
-- opens_at, closes_at: the present opening of windows, or the next one; null means always open. They are stored so that a comparison tells
-- whether a task may start.
-- windows_due: when opens_at and closes_at must be computed again.
-- limits: policies, as a JSON array; null means no policies.
-- callers: maximum number of slots that callers hold; null means no bound.
-- longest_ms: the longest lease that a caller may request.
-- stands_until: the end of the standstill after a restore, in which the pool grants nothing; null means that there was no restore.
-- deleted_at: a deleted pool keeps its row, because its ended batches refer to it. If a pool of the same name is created, its version
-- continues to increase, so Redis recognizes the new settings as newer.
CREATE TABLE pools (
    name         TEXT PRIMARY KEY,
    capacity     INTEGER NOT NULL CHECK (capacity BETWEEN 0 AND 10000),
    lease_ms     INTEGER NOT NULL CHECK (lease_ms > 0),
    paused       INTEGER NOT NULL DEFAULT false,
    paused_by    TEXT NOT NULL DEFAULT '',
    paused_at    INTEGER,
    pause_reason TEXT NOT NULL DEFAULT '',
    windows      TEXT,
    opens_at     INTEGER,
    closes_at    INTEGER,
    windows_due  INTEGER,
    limits       TEXT,
    callers      INTEGER CHECK (callers BETWEEN 0 AND 10000),
    longest_ms   INTEGER NOT NULL DEFAULT 86400000 CHECK (longest_ms > 0),
    stands_until INTEGER,
    version      INTEGER NOT NULL DEFAULT 1,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    deleted_at   INTEGER
);
-- Used several times a second to find the pools that changed recently.
CREATE INDEX pools_updated_at ON pools (updated_at);
CREATE INDEX pools_windows_due ON pools (windows_due) WHERE windows_due IS NOT NULL;

-- Batches: what their tasks have in common. windows, opens_at, closes_at, windows_due and limits are as in pools.
-- abort_ended, abort_failed: the counts of the batch when its abort rule began to count.
-- cancelling: the batch is cancelled and may still have open tasks.
-- wait_until: a task without a not_before of its own must start before this time; null means no limit.
-- system: the batch contains leases of callers; operators cannot queue into it.
CREATE TABLE batches (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    name             TEXT NOT NULL DEFAULT '',
    pool             TEXT NOT NULL REFERENCES pools,
    kind             TEXT NOT NULL DEFAULT '',
    payload          TEXT,
    priority         INTEGER NOT NULL DEFAULT 0,
    weight           INTEGER NOT NULL DEFAULT 1,
    lane             TEXT NOT NULL DEFAULT 'normal',
    not_before       INTEGER,
    not_after        INTEGER,
    max_wait_ms      INTEGER NOT NULL DEFAULT 0,
    wait_until       INTEGER,
    windows          TEXT,
    finish_inside    INTEGER NOT NULL DEFAULT true,
    opens_at         INTEGER,
    closes_at        INTEGER,
    windows_due      INTEGER,
    limits           TEXT,
    max_attempts     INTEGER NOT NULL DEFAULT 1,
    retry_on         TEXT NOT NULL DEFAULT '',
    retry_backoff_ms INTEGER NOT NULL DEFAULT 0,
    on_lost          TEXT NOT NULL DEFAULT '',
    lease_ms         INTEGER NOT NULL DEFAULT 0,
    max_run_ms       INTEGER NOT NULL DEFAULT 0,
    abort_failure    REAL NOT NULL DEFAULT 0,
    abort_min        INTEGER NOT NULL DEFAULT 0,
    abort_ended      INTEGER NOT NULL DEFAULT 0,
    abort_failed     INTEGER NOT NULL DEFAULT 0,
    paused           INTEGER NOT NULL DEFAULT false,
    paused_by        TEXT NOT NULL DEFAULT '',
    paused_at        INTEGER,
    pause_reason     TEXT NOT NULL DEFAULT '',
    cancelled_at     INTEGER,
    cancelling       INTEGER NOT NULL DEFAULT false,
    created_at       INTEGER NOT NULL,
    total            INTEGER NOT NULL DEFAULT 0,
    system           INTEGER NOT NULL DEFAULT false
);
-- The next five indexes are used by background passes.
CREATE INDEX batches_not_after ON batches (not_after) WHERE not_after IS NOT NULL;
CREATE INDEX batches_with_wait ON batches (id) WHERE wait_until IS NOT NULL;
CREATE INDEX batches_windows_due ON batches (windows_due) WHERE windows_due IS NOT NULL;
CREATE INDEX batches_cancelling ON batches (id) WHERE cancelling;
CREATE INDEX batches_limited ON batches (pool) WHERE limits IS NOT NULL;
-- Used to list the batches of a pool, and to count its waiting devices.
CREATE INDEX batches_of_pool ON batches (pool, id);
CREATE INDEX batches_of_kind ON batches (kind, id);
-- Used to find the newest batches of leases of a pool.
CREATE INDEX batches_of_system ON batches (pool, id) WHERE system;
-- Used to find urgent batches, which are few among all batches.
CREATE INDEX batches_urgent ON batches (id) WHERE lane = 'urgent';
CREATE INDEX batches_urgent_of_pool ON batches (pool, id) WHERE lane = 'urgent';

-- Number of tasks of each batch that ended in each state: the sum of the rows here and in batch_deltas. A task that is in neither table,
-- and has no grant, is pending.
CREATE TABLE batch_counts (
    batch INTEGER NOT NULL REFERENCES batches ON DELETE CASCADE,
    state TEXT NOT NULL,
    n     INTEGER NOT NULL,
    PRIMARY KEY (batch, state)
);

-- The same numbers for all batches of a pool together. The state 'queued' has the number of all their tasks.
CREATE TABLE pool_counts (
    pool  TEXT NOT NULL,
    state TEXT NOT NULL,
    n     INTEGER NOT NULL,
    PRIMARY KEY (pool, state)
);

-- Changes of the counts since the last fold.
-- batch: 0 means that the change counts only for the pool.
CREATE TABLE batch_deltas (
    id    INTEGER PRIMARY KEY AUTOINCREMENT,
    batch INTEGER NOT NULL,
    pool  TEXT NOT NULL,
    state TEXT NOT NULL,
    n     INTEGER NOT NULL,
    at    INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER))
);
CREATE INDEX batch_deltas_of_batch ON batch_deltas (batch);
-- +goose StatementBegin
CREATE TRIGGER batches_queued AFTER INSERT ON batches WHEN NEW.total <> 0 BEGIN
    INSERT INTO batch_deltas (batch, pool, state, n) VALUES (0, NEW.pool, 'queued', NEW.total);
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER batches_counted AFTER UPDATE OF total ON batches WHEN OLD.total <> NEW.total BEGIN
    INSERT INTO batch_deltas (batch, pool, state, n) VALUES (0, NEW.pool, 'queued', NEW.total - OLD.total);
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER batches_removed AFTER DELETE ON batches WHEN OLD.total <> 0 BEGIN
    INSERT INTO batch_deltas (batch, pool, state, n) VALUES (0, OLD.pool, 'queued', -OLD.total);
END;
-- +goose StatementEnd

-- Number of tasks of a batch that succeeded, failed or timed out in the last minutes, written by each fold.
CREATE TABLE batch_rates (
    batch INTEGER NOT NULL REFERENCES batches ON DELETE CASCADE,
    at    INTEGER NOT NULL,
    n     INTEGER NOT NULL
);
CREATE INDEX batch_rates_of_batch ON batch_rates (batch, at);
CREATE INDEX batch_rates_at ON batch_rates (at);

-- What happened to the slots of each pool per minute, and the capacity at the end of the minute. There is a row only if something happened.
-- The charts of days are computed from these rows.
-- minute: minutes since 1970.
CREATE TABLE pool_minutes (
    pool     TEXT NOT NULL,
    minute   INTEGER NOT NULL,
    granted  INTEGER NOT NULL,
    ended    INTEGER NOT NULL,
    lapsed   INTEGER NOT NULL,
    capacity INTEGER NOT NULL,
    PRIMARY KEY (pool, minute)
) WITHOUT ROWID;
-- Used to delete old rows.
CREATE INDEX pool_minutes_minute ON pool_minutes (minute);

-- The event up to which pool_minutes is complete: one row.
CREATE TABLE minutes_counted (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    event INTEGER NOT NULL
);
INSERT INTO minutes_counted (id, event) VALUES (1, 0);

-- The progress of batches, written by each fold: the number of tasks that ended in each step. The length of a step grows with the age of the
-- batch, so that a batch has few rows, however long it takes.
-- since_ms: the beginning of the step, in milliseconds since the batch began.
-- at: the time of the last change in the step.
CREATE TABLE batch_progress (
    batch    INTEGER NOT NULL REFERENCES batches ON DELETE CASCADE,
    since_ms INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    ended    INTEGER NOT NULL,
    failed   INTEGER NOT NULL,
    PRIMARY KEY (batch, since_ms)
) WITHOUT ROWID;

-- Tasks. A grant does not change this row: a task is dispatched if it has a row in grants. So 'pending' means open: waiting or dispatched.
-- own_priority: false means that the task has the priority of its batch.
-- payload, output: stored as text, so that they are returned byte for byte.
-- retry_at: the task is not granted before; at first its not_before, later the end of a backoff.
-- lease_ms: the length of its lease without a renewal; null means the lease of its batch or pool.
-- output_dropped: its device sent an output that was too large.
CREATE TABLE tasks (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    batch        INTEGER NOT NULL REFERENCES batches,
    pool         TEXT NOT NULL,
    device       TEXT NOT NULL,
    priority     INTEGER NOT NULL DEFAULT 0,
    own_priority INTEGER NOT NULL DEFAULT true,
    payload      TEXT,
    state        TEXT NOT NULL DEFAULT 'pending'
                 CHECK (state IN ('pending', 'succeeded', 'failed', 'timed_out', 'cancelled', 'expired', 'suppressed')),
    attempts     INTEGER NOT NULL DEFAULT 0,
    returned     INTEGER NOT NULL DEFAULT 0,
    not_before   INTEGER,
    not_after    INTEGER,
    retry_at     INTEGER,
    lease_ms     INTEGER,
    finished_at  INTEGER,
    output       TEXT,
    output_dropped INTEGER NOT NULL DEFAULT false,
    error        TEXT NOT NULL DEFAULT ''
);
-- Each index slows down the queueing of every task. So there is an index only for queries that run all the time. Lists are filtered along
-- these indexes or, a bounded stretch at a time, along the primary key.
--
-- Used to find the best open tasks of a device in each of its batches, and all tasks of a device. The expression batch * 1 ensures that the
-- planner cannot use another index for the query (see viewsText in store), whatever its statistics are.
CREATE INDEX tasks_of_device ON tasks (device, state, (batch * 1), own_priority, retry_at, priority DESC, id);
-- Used to read the tasks of a batch in a state, in the order of their ids, and to find out whether a batch has open tasks.
CREATE INDEX tasks_of_batch ON tasks (batch, state, id);
-- Used to find the devices to which a slot may be offered next: the waiting tasks of a batch, in its order. Also used to find the batches
-- of a pool with waiting tasks, oldest first.
CREATE INDEX tasks_in_line ON tasks (pool, batch, priority DESC, id) WHERE state = 'pending';
-- Used to count the devices that wait in a pool, by stepping from device to device.
CREATE INDEX tasks_open_of_pool ON tasks (pool, device) WHERE state = 'pending';
-- Used by the pass that expires tasks. Tasks without a not_after are not in it.
CREATE INDEX tasks_not_after ON tasks (not_after) WHERE not_after IS NOT NULL AND state = 'pending';

-- This trigger records every change of the state of a task in batch_deltas, so that no code path can forget it.
-- +goose StatementBegin
CREATE TRIGGER tasks_counted AFTER UPDATE OF state ON tasks WHEN OLD.state <> NEW.state BEGIN
    INSERT INTO batch_deltas (batch, pool, state, n) SELECT OLD.batch, OLD.pool, OLD.state, -1 WHERE OLD.state <> 'pending';
    INSERT INTO batch_deltas (batch, pool, state, n) SELECT NEW.batch, NEW.pool, NEW.state, 1 WHERE NEW.state <> 'pending';
END;
-- +goose StatementEnd

-- The last fencing token given.
CREATE TABLE grant_token (value INTEGER NOT NULL);
INSERT INTO grant_token VALUES (0);

-- The slots in use. The unique keys make a second grant of a slot, a device or a task impossible.
-- lease_ms: the length of a renewal that does not name one.
-- longest_ms: the longest length that the lease ever had, for which the reaper waits; null means lease_ms.
CREATE TABLE grants (
    task        INTEGER PRIMARY KEY,
    batch       INTEGER NOT NULL,
    pool        TEXT NOT NULL,
    slot        INTEGER NOT NULL CHECK (slot >= 0),
    device      TEXT NOT NULL,
    token       INTEGER NOT NULL,
    lease       TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    granted_at  INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    max_until   INTEGER NOT NULL,
    lease_ms    INTEGER NOT NULL,
    longest_ms  INTEGER,
    redelivered INTEGER NOT NULL DEFAULT 0,
    cancel_why  TEXT NOT NULL DEFAULT '',
    UNIQUE (pool, slot),
    UNIQUE (device)
);
CREATE INDEX grants_lease_until ON grants (lease_until);
-- Used to count the slots of a pool that callers hold. Their holders begin with @.
CREATE INDEX grants_of_callers ON grants (pool, device) WHERE device >= '@' AND device < 'A';
-- SQLite has one writer, so a trigger can give a grant its token when its row is inserted.
-- +goose StatementBegin
CREATE TRIGGER grants_token AFTER INSERT ON grants BEGIN
    UPDATE grant_token SET value = value + 1;
    UPDATE grants SET token = (SELECT value FROM grant_token) WHERE task = NEW.task;
END;
-- +goose StatementEnd

-- Grants that have ended.
CREATE TABLE attempts (
    token      INTEGER PRIMARY KEY,
    task       INTEGER NOT NULL,
    number     INTEGER NOT NULL,
    device     TEXT NOT NULL,
    pool       TEXT NOT NULL,
    slot       INTEGER NOT NULL,
    lease      TEXT NOT NULL,
    granted_at INTEGER NOT NULL,
    ended_at   INTEGER NOT NULL,
    ended_by   TEXT NOT NULL,
    output     TEXT,
    output_dropped INTEGER NOT NULL DEFAULT false,
    error      TEXT NOT NULL DEFAULT ''
);
CREATE INDEX attempts_of_task ON attempts (task);
-- Used to read the recent starts in a pool, newest first, which policies count.
CREATE INDEX attempts_of_pool ON attempts (pool, token);

-- Results that could not be used. They are kept so that a repeated result gets the same answer.
-- known: true if the grant of the result is known to the ledger (a late result), false if not (an unknown result).
CREATE TABLE late_results (
    device      TEXT NOT NULL,
    task        INTEGER NOT NULL,
    token       INTEGER NOT NULL,
    known       INTEGER NOT NULL,
    cause       TEXT NOT NULL,
    output      TEXT,
    error       TEXT NOT NULL DEFAULT '',
    received_at INTEGER NOT NULL,
    PRIMARY KEY (device, task, token)
);
-- Used to delete old rows.
CREATE INDEX late_results_received ON late_results (received_at);

-- Profiles: policies that devices share, in every pool in which they run tasks. limits is as in pools.
CREATE TABLE profiles (
    name       TEXT PRIMARY KEY,
    limits     TEXT,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);

-- Limit sets: policies by which callers limit their own work. What was taken from them is stored only in Redis.
CREATE TABLE limit_sets (
    name       TEXT PRIMARY KEY,
    limits     TEXT,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);

-- Devices.
-- reach: how the device can be notified of a slot: 0 it polls, 1 by push, 2 by a parked request.
CREATE TABLE devices (
    id         TEXT PRIMARY KEY,
    blocked    INTEGER NOT NULL DEFAULT false,
    own_token  INTEGER NOT NULL DEFAULT false,
    tags       TEXT NOT NULL DEFAULT '{}',
    attributes TEXT NOT NULL DEFAULT '{}',
    profile    TEXT REFERENCES profiles,
    reach      INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    last_seen  INTEGER
);
CREATE INDEX devices_of_profile ON devices (profile, id) WHERE profile IS NOT NULL;
CREATE INDEX devices_reachable ON devices (id) WHERE reach <> 0;
-- Used to exclude blocked devices, which are few, when waiting devices are counted.
CREATE INDEX devices_blocked ON devices (id) WHERE blocked;

-- Ids of devices that were deleted and not registered again. Their sessions at a broker may still be open, and must not register them
-- again.
-- blocked: the device was blocked, and is blocked again if it is registered again.
CREATE TABLE deleted_devices (
    id         TEXT PRIMARY KEY,
    deleted_at INTEGER NOT NULL,
    blocked    INTEGER NOT NULL DEFAULT false
);

-- Changes of devices that are not yet applied to their accounts at the MQTT broker.
CREATE TABLE account_changes (
    device     TEXT PRIMARY KEY,
    wanted     TEXT NOT NULL CHECK (wanted IN ('enabled', 'disabled', 'deleted')),
    changed_at INTEGER NOT NULL, -- the change is due from this time on
    stage      INTEGER NOT NULL DEFAULT 0 -- the import that creates the account and deletes this row with its COMMIT; 0 means no import
);
CREATE INDEX account_changes_due ON account_changes ((stage <> 0), changed_at, device);

-- Tokens of devices and of operators, identified by their hashes.
-- pools, limit_sets: patterns of the pools and limit sets that the token of a caller covers, as JSON lists.
CREATE TABLE tokens (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    name       TEXT NOT NULL DEFAULT '',
    device     TEXT NOT NULL DEFAULT '',
    role       TEXT NOT NULL DEFAULT '',
    pools      TEXT,
    limit_sets TEXT,
    hash       BLOB NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER
);
CREATE INDEX tokens_of_device ON tokens (device) WHERE device <> '';
-- A name in the log must identify one operator.
CREATE UNIQUE INDEX tokens_by_name ON tokens (name) WHERE device = '' AND revoked_at IS NULL;

-- When an operator token was last used, accurate to one hour. This is not a column of tokens, because all replicas are notified of each
-- change of tokens.
CREATE TABLE token_uses (
    token   INTEGER PRIMARY KEY REFERENCES tokens ON DELETE CASCADE,
    used_at INTEGER NOT NULL
);

-- The tokens that were changed or deleted recently. Triggers write the rows, so that no code path can forget it. Replicas read them and
-- drop these tokens from their caches; an empty hash means all tokens.
CREATE TABLE token_changes (
    turn   INTEGER PRIMARY KEY AUTOINCREMENT,
    hash   BLOB NOT NULL,
    device TEXT NOT NULL DEFAULT '',
    at     INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER))
);
-- +goose StatementBegin
CREATE TRIGGER tokens_changed AFTER UPDATE ON tokens BEGIN
    INSERT INTO token_changes (hash, device) VALUES (OLD.hash, OLD.device);
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER tokens_deleted AFTER DELETE ON tokens BEGIN
    INSERT INTO token_changes (hash, device) VALUES (OLD.hash, OLD.device);
END;
-- +goose StatementEnd

-- News: changes that may make work for devices, or that decide who may act for a device, in the order of commits. Replicas set marks for
-- the devices in Redis. A row with a device is about this device, a row with a batch is about all devices with open tasks in the batch, and
-- a row with neither is about all devices.
CREATE TABLE news (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    at     INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER)),
    batch  INTEGER NOT NULL DEFAULT 0,
    device TEXT NOT NULL DEFAULT ''
);
-- The table is never empty, so it always has a newest id.
INSERT INTO news DEFAULT VALUES;

-- The sessions of operators in the dashboard: the hash of the cookie, and the hash of the operator token with which the session was opened.
CREATE TABLE web_sessions (
    hash       BLOB PRIMARY KEY,
    token_hash BLOB NOT NULL,
    expires_at INTEGER NOT NULL
);

-- The answers to requests with an idempotency key, written in the transaction of their effect.
-- owner: id of the operator token; 0 means the token of the configuration.
CREATE TABLE answers (
    owner       INTEGER NOT NULL,
    key         TEXT NOT NULL,
    request     BLOB NOT NULL,
    answer      TEXT NOT NULL,
    answered_at INTEGER NOT NULL,
    PRIMARY KEY (owner, key)
);
CREATE INDEX answers_answered_at ON answers (answered_at);

-- The activity and audit log.
CREATE TABLE events (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    at     INTEGER NOT NULL,
    kind   TEXT NOT NULL,
    actor  TEXT NOT NULL DEFAULT '',
    pool   TEXT NOT NULL DEFAULT '',
    batch  INTEGER NOT NULL DEFAULT 0,
    task   INTEGER NOT NULL DEFAULT 0,
    device TEXT NOT NULL DEFAULT '',
    token  INTEGER NOT NULL DEFAULT 0,
    detail TEXT NOT NULL DEFAULT ''
);
-- Events are read in the order of their ids: of a device, of a pool, or of an actor that is not the device itself. Events of the last kind
-- are few. Events of a task are found with the events of its device, and events of a batch with the events of its pool. All other filters
-- are checked along the primary key.
CREATE INDEX events_of_device ON events (device, id) WHERE device <> '';
CREATE INDEX events_of_pool ON events (pool, id) WHERE pool <> '';
CREATE INDEX events_of_actor ON events (actor, id) WHERE actor <> device;

-- Heartbeats: the data that each replica stores about itself every few seconds. A row that is no longer updated belongs to a replica that
-- ended.
CREATE TABLE replicas (
    id         TEXT PRIMARY KEY,
    host       TEXT NOT NULL,
    address    TEXT NOT NULL,
    version    TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL,
    reaped_at  INTEGER,
    state      TEXT NOT NULL,
    tallies    TEXT NOT NULL
);

-- The last period for which the time of free slots was counted, from taken_before to taken_at: one row.
CREATE TABLE idle_time (
    id           INTEGER PRIMARY KEY CHECK (id = 1),
    taken_before INTEGER NOT NULL,
    taken_at     INTEGER NOT NULL
);
INSERT INTO idle_time (id, taken_before, taken_at) VALUES (1, (CAST(round(unixepoch('subsec') * 1000) AS INTEGER)), (CAST(round(unixepoch('subsec') * 1000) AS INTEGER)));

-- A pair of clocks: the trusted time of this database's clock at the moment when the clock of a replica's host showed wall. One row, once a
-- pair is known.
CREATE TABLE clock_pair (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    ledger INTEGER NOT NULL,
    wall   INTEGER NOT NULL
);

-- Restores: one row for each time that the ledger was replaced by a backup that lacked commits.
-- until: a pool that is created after the restore grants nothing before this time, because the lost part of the ledger may have had a pool
-- of the same name. Other pools have their own time in pools.stands_until.
CREATE TABLE restores (
    id    INTEGER PRIMARY KEY AUTOINCREMENT,
    at    INTEGER NOT NULL,
    until INTEGER NOT NULL
);
CREATE INDEX restores_until ON restores (until);

-- +goose Down
DROP TABLE restores;
DROP TABLE clock_pair;
DROP TABLE idle_time;
DROP TABLE replicas;
DROP TABLE events;
DROP TABLE answers;
DROP TABLE web_sessions;
DROP TABLE news;
DROP TABLE token_changes;
DROP TABLE token_uses;
DROP TABLE tokens;
DROP TABLE account_changes;
DROP TABLE deleted_devices;
DROP TABLE devices;
DROP TABLE limit_sets;
DROP TABLE profiles;
DROP TABLE late_results;
DROP TABLE attempts;
DROP TABLE grants;
DROP TABLE grant_token;
DROP TABLE tasks;
DROP TABLE batch_progress;
DROP TABLE batch_rates;
DROP TABLE minutes_counted;
DROP TABLE pool_minutes;
DROP TABLE batch_deltas;
DROP TABLE pool_counts;
DROP TABLE batch_counts;
DROP TABLE batches;
DROP TABLE pools;
