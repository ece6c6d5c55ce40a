-- +goose Up
-- goose sends a StatementBegin block as one text. Outside of such a block, goose would allocate 4 MB to parse a line.
-- +goose StatementBegin
-- All times are stored as integers: milliseconds since 1970.

-- A DEFAULT of this schema is not the default of a setting. Package store writes each setting of a new pool and
-- of a new batch of tasks. The defaults are in store/pool.go and operators/batch_defaults.go.

-- Pools: a pool is a cap. At most `capacity` tasks of the pool run at the same time, each in one slot.
-- windows: the recurring times in which tasks may start, as a JSON array; null means always.
-- opens_at: the time at which the windows open next, or at which they last opened if they are open now; null
--   means always open.
-- closes_at: the end of the opening that starts at opens_at; null means always open. Both times are stored,
--   so that a query can decide by comparing times whether a task may start.
-- windows_due: the time at which opens_at and closes_at must be computed again; null means never.
-- limits: the policies (rules about how often tasks may start), as a JSON array; null means none.
-- callers: the maximum number of slots that callers (programs that lease slots through the API) hold at the
--   same time; null means no maximum.
-- longest_ms: the longest lease that a caller may request.
-- sleep_ms: the longest time until a device that waits for a slot is asked to report again. Devices near the
--   front of the queue are asked to report sooner.
-- stands_until: the pool makes no grant before this time. A restore of the ledger sets it, because leases that
--   the restored ledger does not know may be in force. null means that the ledger was never restored.
-- version: increases with each change of the pool, so that Redis can ignore older settings that arrive late.
--   If a deleted pool is created again, it continues to increase.
-- deleted_at: the time at which the pool was deleted. A deleted pool keeps its row, because its ended batches
--   refer to it.
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
    sleep_ms     INTEGER NOT NULL DEFAULT 600000 CHECK (sleep_ms > 0),
    stands_until INTEGER,
    version      INTEGER NOT NULL DEFAULT 1,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    deleted_at   INTEGER
);
-- Used several times a second to find the pools that changed recently; their capacities are copied to Redis.
CREATE INDEX pools_updated_at ON pools (updated_at);
-- Used by the pass (background job) that computes the next opening (opens_at and closes_at) again when it is due.
CREATE INDEX pools_windows_due ON pools (windows_due) WHERE windows_due IS NOT NULL;

-- Batches: a batch is a list of tasks that an operator queued together, with settings that hold for all of
-- them. The columns windows, opens_at, closes_at, windows_due and limits mean the same as in the table pools.
-- wait_until: a task without a not_before of its own expires if it has not started before this time; null means
--   that there is no such time.
-- on_lost: what happens to a task whose lease ended without a result: 'retry' or 'fail'.
-- max_run_ms: the longest duration of a grant with all its renewals; 0 means 1 hour.
-- abort_failure, abort_min: the abort rule. It pauses the batch if at least abort_min tasks have ended, and the
--   share abort_failure of them has failed or timed out.
-- abort_ended: the number of tasks that had succeeded, failed or timed out when the batch was last resumed. The
--   abort rule ignores these tasks.
-- abort_failed: the number of tasks in abort_ended that had failed or timed out.
-- cancelling: true if the batch is cancelled and may still have open tasks.
-- system: true if the batch contains the leases of callers. Operators cannot queue tasks into this batch.
-- failed_tasks: the number of tasks that failed or timed out.
-- ended_at: the time at which the last task ended; null while a task is open. Lists of batches are selected and
--   sorted by failed_tasks and ended_at. A background job writes both, so they are some seconds late.
-- is_deployment: true if the payload is a DDI deployment, so that devices which speak hawkBit's DDI can do the
--   tasks of the batch that have no payload of their own.
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
    system           INTEGER NOT NULL DEFAULT false,
    failed_tasks     INTEGER NOT NULL DEFAULT 0,
    ended_at         INTEGER,
    is_deployment    INTEGER NOT NULL DEFAULT false
);
-- Used by the pass that expires tasks, to find the batches whose not_after is over.
CREATE INDEX batches_not_after ON batches (not_after) WHERE not_after IS NOT NULL;
-- Used by the pass that expires tasks, to find the batches whose wait_until is over.
CREATE INDEX batches_with_wait ON batches (id) WHERE wait_until IS NOT NULL;
-- Used by the pass that computes the next opening (opens_at and closes_at) again when it is due.
CREATE INDEX batches_windows_due ON batches (windows_due) WHERE windows_due IS NOT NULL;
-- Used by the pass that ends the open tasks of cancelled batches.
CREATE INDEX batches_cancelling ON batches (id) WHERE cancelling;
-- Used by a background pass to find the batches of a pool that have policies.
CREATE INDEX batches_limited ON batches (pool) WHERE limits IS NOT NULL;
-- Used to list the batches of a pool, and to count the devices that wait in the pool.
CREATE INDEX batches_of_pool ON batches (pool, id);
-- Used to list the batches of a kind.
CREATE INDEX batches_of_kind ON batches (kind, id);
-- Used to find, in one pool, the newest batches that contain leases of callers.
CREATE INDEX batches_of_system ON batches (pool, id) WHERE system;
-- Used to list the urgent batches of all pools. Few batches are urgent, so this index is small.
CREATE INDEX batches_urgent ON batches (id) WHERE lane = 'urgent';
-- Used to find the urgent batches of one pool.
CREATE INDEX batches_urgent_of_pool ON batches (pool, id) WHERE lane = 'urgent';
-- Two indexes used to list the batches with open tasks. The first serves all pools, the second one pool.
CREATE INDEX batches_open ON batches (id) WHERE ended_at IS NULL;
CREATE INDEX batches_open_of_pool ON batches (pool, id) WHERE ended_at IS NULL;
-- Two indexes used to list the cancelled batches. The first serves all pools, the second one pool.
CREATE INDEX batches_cancelled ON batches (id) WHERE cancelled_at IS NOT NULL;
CREATE INDEX batches_cancelled_of_pool ON batches (pool, id) WHERE cancelled_at IS NOT NULL;
-- Two indexes used to list batches, the most failures first. The first serves all pools, the second one pool.
CREATE INDEX batches_failed ON batches (failed_tasks, id) WHERE failed_tasks > 0;
CREATE INDEX batches_failed_of_pool ON batches (pool, failed_tasks, id) WHERE failed_tasks > 0;
-- Two indexes used to list ended batches, the latest end first. The first serves all pools, the second one pool.
CREATE INDEX batches_ended ON batches (ended_at, id) WHERE ended_at IS NOT NULL;
CREATE INDEX batches_ended_of_pool ON batches (pool, ended_at, id) WHERE ended_at IS NOT NULL;

-- The number of tasks of each batch that ended in each final state, as of the last fold. A fold is a run of
-- the background job that adds the rows of batch_deltas to this table and deletes them. So the present number
-- is the sum of both tables. A task that neither table counts is open: it is dispatched if it has a row in
-- grants, else it is pending.
CREATE TABLE batch_counts (
    batch INTEGER NOT NULL REFERENCES batches ON DELETE CASCADE,
    state TEXT NOT NULL,
    n     INTEGER NOT NULL,
    PRIMARY KEY (batch, state)
);

-- The number of tasks of each pool that ended in each final state, as of the last fold. The present number is
-- the sum of this table and batch_deltas, as in batch_counts. The row with the state 'queued' has the number of
-- all tasks of the pool, open or ended.
CREATE TABLE pool_counts (
    pool  TEXT NOT NULL,
    state TEXT NOT NULL,
    n     INTEGER NOT NULL,
    PRIMARY KEY (pool, state)
);

-- Changes of task counts that batch_counts and pool_counts do not include yet. A fold adds these rows to the
-- counts and deletes them.
-- batch: the id of the batch whose count also changes; 0 means that only the count of the pool changes.
-- n: the number to add to the count; it can be negative.
CREATE TABLE batch_deltas (
    id    INTEGER PRIMARY KEY AUTOINCREMENT,
    batch INTEGER NOT NULL,
    pool  TEXT NOT NULL,
    state TEXT NOT NULL,
    n     INTEGER NOT NULL,
    at    INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER))
);
-- Used to read the changes of the counts of one batch that are not yet in batch_counts.
CREATE INDEX batch_deltas_of_batch ON batch_deltas (batch);
-- The next three triggers record each change of the number of all tasks of a pool (state 'queued') in
-- batch_deltas.
CREATE TRIGGER batches_queued AFTER INSERT ON batches WHEN NEW.total <> 0 BEGIN
    INSERT INTO batch_deltas (batch, pool, state, n) VALUES (0, NEW.pool, 'queued', NEW.total);
END;
CREATE TRIGGER batches_counted AFTER UPDATE OF total ON batches WHEN OLD.total <> NEW.total BEGIN
    INSERT INTO batch_deltas (batch, pool, state, n) VALUES (0, NEW.pool, 'queued', NEW.total - OLD.total);
END;
CREATE TRIGGER batches_removed AFTER DELETE ON batches WHEN OLD.total <> 0 BEGIN
    INSERT INTO batch_deltas (batch, pool, state, n) VALUES (0, OLD.pool, 'queued', -OLD.total);
END;

-- The recent speed of each batch. For each batch with ended tasks, a fold inserts one row. Rows are deleted
-- after some minutes.
-- n: the number of tasks that succeeded, failed or timed out since the previous fold.
CREATE TABLE batch_rates (
    batch INTEGER NOT NULL REFERENCES batches ON DELETE CASCADE,
    at    INTEGER NOT NULL,
    n     INTEGER NOT NULL
);
-- Used to read the recent rows of one batch, from which its speed is computed.
CREATE INDEX batch_rates_of_batch ON batch_rates (batch, at);
-- Used to delete old rows.
CREATE INDEX batch_rates_at ON batch_rates (at);

-- What happened to the slots of each pool in each minute. The charts that cover days are drawn from this
-- table. A minute in which nothing happened has no row.
-- minute: the number of the minute, counted from 1970.
-- granted: the number of grants that were made in the minute.
-- ended: the number of grants that ended in the minute, including the grants that "lapsed" counts.
-- lapsed: the number of grants that the reaper (the pass that ends grants) ended because their leases were over.
-- failed: the number of attempts that failed in the minute: the device failed or rejected the task, or its lease
--   was over. Some tasks are tried again.
-- capacity: the capacity of the pool at the end of the minute.
CREATE TABLE pool_minutes (
    pool     TEXT NOT NULL,
    minute   INTEGER NOT NULL,
    granted  INTEGER NOT NULL,
    ended    INTEGER NOT NULL,
    lapsed   INTEGER NOT NULL,
    failed   INTEGER NOT NULL,
    capacity INTEGER NOT NULL,
    PRIMARY KEY (pool, minute)
) WITHOUT ROWID;
-- Used to delete old rows.
CREATE INDEX pool_minutes_minute ON pool_minutes (minute);

-- The position up to which the events are counted in the table pool_minutes. The table has one row.
-- event: the id of the last event that pool_minutes includes.
CREATE TABLE minutes_counted (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    event INTEGER NOT NULL
);
INSERT INTO minutes_counted (id, event) VALUES (1, 0);

-- The progress of each batch over time. The lifetime of a batch is divided into steps. Each fold adds the
-- tasks that ended since the previous fold to the row of the present step. The steps become longer as the batch
-- gets older, so that even a long batch has few rows.
-- since_ms: the start of the step, in milliseconds after the beginning of the batch.
-- at: the time of the last change in the step.
-- ended: the number of tasks that ended in the step.
-- failed: the number of these tasks that failed or timed out.
CREATE TABLE batch_progress (
    batch    INTEGER NOT NULL REFERENCES batches ON DELETE CASCADE,
    since_ms INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    ended    INTEGER NOT NULL,
    failed   INTEGER NOT NULL,
    PRIMARY KEY (batch, since_ms)
) WITHOUT ROWID;

-- Tasks: a task is one job for one device in one pool. A task is dispatched while it has a row in grants. Its
-- own row does not change with a grant. So the state 'pending' means that the task is open: it waits or it is
-- dispatched.
-- own_priority: true if the task has a priority of its own; false means that it has the priority of its batch.
-- payload, output: stored as text, so that they are returned byte for byte.
-- attempts: the number of ended attempts that count against max_attempts.
-- returned: the number of other attempts in which the device handed the task back, since the last retry by an
--   operator. Neither column counts a return because of a pause of the pool.
-- started: true if the task has an ended attempt, also one that neither column counts.
-- retry_at: the time before which the task is not granted. It is the not_before of the task at first, and the
--   end of the backoff after an attempt.
-- lease_ms: the length of a lease of this task until its first renewal; null means that the batch or the pool
--   sets the length.
-- output_dropped: true if the device sent an output that was too large to be stored.
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
    started      INTEGER NOT NULL DEFAULT false,
    not_before   INTEGER,
    not_after    INTEGER,
    retry_at     INTEGER,
    lease_ms     INTEGER,
    finished_at  INTEGER,
    output       TEXT,
    output_dropped INTEGER NOT NULL DEFAULT false,
    error        TEXT NOT NULL DEFAULT ''
);
-- Each index on tasks slows down the queueing of every task. So there are indexes only for queries that run
-- all the time. A list of tasks is read along one index and then filtered. If no index fits, the list is read along the
-- primary key, at most a fixed number of ids at a time.

-- Used to find the best open tasks of a device in each of its batches, and to list all tasks of a device.
-- Only this index has the expression batch * 1. So a query with batch * 1 uses this index, whatever the
-- statistics of the planner are (viewsText in the package store).
CREATE INDEX tasks_of_device ON tasks (device, state, (batch * 1), own_priority, retry_at, priority DESC, id);
-- Used to read the tasks of a batch in one state in the order of their ids, and to find out whether a batch
-- has open tasks.
CREATE INDEX tasks_of_batch ON tasks (batch, state, id);
-- Used to find the devices to which a slot may be offered next: the query reads the open tasks of a batch by
-- priority, then by id. Also used to find the batches of a pool that have open tasks, oldest batch first.
CREATE INDEX tasks_in_line ON tasks (pool, batch, priority DESC, id) WHERE state = 'pending';
-- Used to count the devices that wait in a pool. The query jumps from each device to the next one, so it does
-- not read all tasks.
CREATE INDEX tasks_open_of_pool ON tasks (pool, device) WHERE state = 'pending';
-- Used by the pass that expires tasks, to find the open tasks whose own not_after is over.
CREATE INDEX tasks_not_after ON tasks (not_after) WHERE not_after IS NOT NULL AND state = 'pending';

-- The trigger tasks_counted records every change of the state of a task in batch_deltas. A trigger does this,
-- so that no code path can forget to record a change.
CREATE TRIGGER tasks_counted AFTER UPDATE OF state ON tasks WHEN OLD.state <> NEW.state BEGIN
    INSERT INTO batch_deltas (batch, pool, state, n) SELECT OLD.batch, OLD.pool, OLD.state, -1 WHERE OLD.state <> 'pending';
    INSERT INTO batch_deltas (batch, pool, state, n) SELECT NEW.batch, NEW.pool, NEW.state, 1 WHERE NEW.state <> 'pending';
END;

-- The highest fencing token so far; the table has one row. Each grant receives the next token, and a result
-- with an older token is ignored.
CREATE TABLE grant_token (value INTEGER NOT NULL);
INSERT INTO grant_token VALUES (0);

-- Grants in force: one row for each slot in use. The unique keys make a second grant of a slot, a device or a
-- task impossible.
-- lease: the id of the lease that holds the slot in Redis.
-- max_until: the lease cannot be renewed beyond this time.
-- lease_ms: the length of a renewal if its request does not ask for another length.
-- longest_ms: the longest length that the lease ever had; null means that it is the value of lease_ms. The
--   reaper uses it to decide when the lease is over.
-- redelivered: how often the grant was sent to the device again.
-- cancel_why: the reason why the device is asked to stop; empty means that it is not asked to stop.
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
-- Used to find the grants whose leases end first.
CREATE INDEX grants_lease_until ON grants (lease_until);
-- Used to count the slots of a pool that callers hold. In a grant of a caller, the column device begins with
-- @.
CREATE INDEX grants_of_callers ON grants (pool, device) WHERE device >= '@' AND device < 'A';
-- The trigger gives each new grant the next fencing token. No token is given twice, because SQLite has only
-- one writer at a time.
CREATE TRIGGER grants_token AFTER INSERT ON grants BEGIN
    UPDATE grant_token SET value = value + 1;
    UPDATE grants SET token = (SELECT value FROM grant_token) WHERE task = NEW.task;
END;

-- Attempts: one row for each grant that has ended. A task can have several attempts.
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
-- Used to read the attempts of a task.
CREATE INDEX attempts_of_task ON attempts (task);
-- Used to read the recent starts of tasks in a pool, newest first. Policies (rules about how often tasks may
-- start) count these starts.
CREATE INDEX attempts_of_pool ON attempts (pool, token);

-- Results that ended no grant, because they were late or unknown. They are kept so that a result that is sent
-- again gets the same answer as before.
-- known: true if the result is late: its grant had ended before. false if the result is unknown: its grant is
--   not in the ledger.
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

-- Profiles: named sets of policies for devices. A policy is a rule about how often tasks may start. The
-- policies of a profile apply to each device of the profile, in every pool.
-- limits: the policies, as a JSON array; null means that there are none.
-- metadata_only: true if devices that speak hawkBit's DDI also get tasks whose payload is no DDI deployment.
CREATE TABLE profiles (
    name          TEXT PRIMARY KEY,
    limits        TEXT,
    metadata_only INTEGER NOT NULL DEFAULT false,
    version       INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL
);

-- Limit sets: named sets of policies by which callers limit their own work, without a slot. Only Redis stores
-- how much of a policy is used.
-- limits: the policies, as a JSON array; null means that there are none.
CREATE TABLE limit_sets (
    name       TEXT PRIMARY KEY,
    limits     TEXT,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);

-- Devices: the machines that report and do tasks.
-- own_token: true if the device has used a token of its own. Fleet tokens then no longer act for the device.
-- reach: the way to notify the device of a slot. 0 means that there is no way, because the device polls; 1
--   means a push over MQTT; 2 means an answer to the parked request of the device.
-- quiet_until: the time from which the silence of the device is measured. It is later than last_seen if the device
--   was asked to report again after more than one report period. It is null until the first report.
-- noisy_at: the last time at which a replica recorded that the device reports far too often; null means never.
-- registered_by: who registered the device. An operator is named by the name of the token, and a fleet token by
--   "fleet:" and the first digits of its hash. The value "session" means a session at an MQTT broker.
-- blocked_by, blocked_at, block_reason: who blocked the device, when and why. Empty or null if it is not blocked, or
--   if it was blocked because its registration needs an approval.
-- wire: the wire (protocol) of the last report of the device: 'http', 'mqtt' or 'hawkbit'; empty until it is known.
CREATE TABLE devices (
    id         TEXT PRIMARY KEY,
    blocked    INTEGER NOT NULL DEFAULT false,
    own_token  INTEGER NOT NULL DEFAULT false,
    tags       TEXT NOT NULL DEFAULT '{}',
    attributes TEXT NOT NULL DEFAULT '{}',
    profile    TEXT REFERENCES profiles,
    reach      INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    last_seen  INTEGER,
    quiet_until INTEGER,
    noisy_at   INTEGER,
    registered_by TEXT NOT NULL DEFAULT '',
    blocked_by TEXT NOT NULL DEFAULT '',
    blocked_at INTEGER,
    block_reason TEXT NOT NULL DEFAULT '',
    wire       TEXT NOT NULL DEFAULT ''
);
-- Used to list the devices of a profile.
CREATE INDEX devices_of_profile ON devices (profile, id) WHERE profile IS NOT NULL;
-- Used to find out whether any device can be notified of a slot.
CREATE INDEX devices_reachable ON devices (id) WHERE reach <> 0;
-- Used to subtract the blocked devices from the number of waiting devices. Few devices are blocked, so this
-- index is small.
CREATE INDEX devices_blocked ON devices (id) WHERE blocked;
-- Used to count the devices of a batch that speak hawkBit's DDI. In a fleet without such devices, the index is
-- empty.
CREATE INDEX devices_hawkbit ON devices (id) WHERE wire = 'hawkbit';
-- Used to list the noisy devices. Few devices were ever noisy, so this index is small.
CREATE INDEX devices_noisy ON devices (id) WHERE noisy_at IS NOT NULL;

-- DDI actions: the newest action of each device that speaks hawkBit's DDI. An action is one grant under a number
-- that fits into 32 bits. The row stays when the device is deleted, so that no number is used twice.
-- action: the number of the newest action; 0 means that the device had none.
-- last: the highest number that is used up. A restore of the ledger raises it by 1,000,000, because the lost part
--   of the ledger may have used the next numbers.
-- task, token: the task and the fencing token of the grant of the action.
-- state: 'open'; 'installed' (the device reported success); 'closed' (the device reported another end);
--   'overrun' (the grant ended without a result, and the device sent a request after that).
-- asks: true if the answers to the next requests of the device ask the device for its attributes.
CREATE TABLE hawkbit_actions (
    device TEXT PRIMARY KEY,
    action INTEGER NOT NULL DEFAULT 0,
    last   INTEGER NOT NULL CHECK (last BETWEEN 0 AND 2000000000),
    task   INTEGER NOT NULL DEFAULT 0,
    token  INTEGER NOT NULL DEFAULT 0,
    state  TEXT NOT NULL DEFAULT 'closed',
    asks   INTEGER NOT NULL DEFAULT true
);

-- Devices that were deleted and have not been registered again since. A deleted device may still be connected
-- to an MQTT broker. If it sends a report over this connection, the report must not register it again.
-- blocked: true if the device was blocked when it was deleted. If the device is registered again, it is
--   blocked again, with the same blocked_by, blocked_at and block_reason.
-- refused: true if only an operator may register the device again.
CREATE TABLE deleted_devices (
    id         TEXT PRIMARY KEY,
    deleted_at INTEGER NOT NULL,
    blocked    INTEGER NOT NULL DEFAULT false,
    refused    INTEGER NOT NULL DEFAULT false,
    blocked_by TEXT NOT NULL DEFAULT '',
    blocked_at INTEGER,
    block_reason TEXT NOT NULL DEFAULT ''
);

-- Changes that must still be made to the accounts of devices at the MQTT broker. A device has at most one
-- row.
-- wanted: the state that the account must get.
-- changed_at: the time at which the change becomes due.
-- stage: the number of the import of devices that creates the account; 0 means no import. The import deletes
--   the row in its last transaction. If that transaction does not commit, the row stays, and the account is
--   deleted when the row is due. So a failed import leaves no accounts.
CREATE TABLE account_changes (
    device     TEXT PRIMARY KEY,
    wanted     TEXT NOT NULL CHECK (wanted IN ('enabled', 'disabled', 'deleted')),
    changed_at INTEGER NOT NULL,
    stage      INTEGER NOT NULL DEFAULT 0
);
-- Used to find the changes that are due. Changes that belong to no import come first.
CREATE INDEX account_changes_due ON account_changes ((stage <> 0), changed_at, device);

-- Tokens: the secrets by which devices, callers and operators authenticate. Only the hash of a token is stored.
-- pools: the pools that the token of a caller covers: a JSON array of name patterns.
-- limit_sets: the limit sets that the token of a caller covers: a JSON array of name patterns.
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
-- Used to find the tokens of a device.
CREATE INDEX tokens_of_device ON tokens (device) WHERE device <> '';
-- Two operator tokens that are not revoked cannot have the same name, because the name identifies an operator
-- in the audit log.
CREATE UNIQUE INDEX tokens_by_name ON tokens (name) WHERE device = '' AND revoked_at IS NULL;

-- The time at which each operator token was last used, accurate to one minute, and the number of requests with the
-- token. They are not columns of the table tokens, because replicas remove a token from their caches after each
-- change of its row in tokens.
CREATE TABLE token_uses (
    token    INTEGER PRIMARY KEY REFERENCES tokens ON DELETE CASCADE,
    used_at  INTEGER NOT NULL,
    requests INTEGER NOT NULL
);

-- Tokens that were changed or deleted recently. Replicas read these rows and remove the tokens from their
-- caches. Triggers of the table tokens write the rows, so that no code path can forget a change.
-- turn: the number of the change. Each change has a higher number than the change before.
-- hash: the hash of the changed token. An empty hash means that all tokens changed.
CREATE TABLE token_changes (
    turn   INTEGER PRIMARY KEY AUTOINCREMENT,
    hash   BLOB NOT NULL,
    device TEXT NOT NULL DEFAULT '',
    at     INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER))
);
CREATE TRIGGER tokens_changed AFTER UPDATE ON tokens BEGIN
    INSERT INTO token_changes (hash, device) VALUES (OLD.hash, OLD.device);
END;
CREATE TRIGGER tokens_deleted AFTER DELETE ON tokens BEGIN
    INSERT INTO token_changes (hash, device) VALUES (OLD.hash, OLD.device);
END;

-- News: changes that may give work to devices, or that change who may act for a device. Replicas read the
-- news and set marks in Redis. A mark means that a device has work; a device without a mark is answered
-- without a read of this database. The ids rise in the order of the commits, so a reader misses no row.
-- batch: the id of a batch. The row concerns all devices that have open tasks in this batch.
-- device: the id of a device. The row concerns this device.
-- pool: the name of a pool, or '*' for all pools. The row concerns the devices that wait in the pool: they may
--   start earlier or later, or wait for another reason.
-- If batch is 0, and device and pool are empty, the row concerns all devices.
CREATE TABLE news (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    at     INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER)),
    batch  INTEGER NOT NULL DEFAULT 0,
    device TEXT NOT NULL DEFAULT '',
    pool   TEXT NOT NULL DEFAULT ''
);
-- The table news must have a newest id at all times, so it starts with one row.
INSERT INTO news DEFAULT VALUES;

-- Sessions of operators in the dashboard (the web pages).
-- hash: the hash of the session cookie.
-- token_hash: the hash of the operator token with which the session was opened.
CREATE TABLE web_sessions (
    hash       BLOB PRIMARY KEY,
    token_hash BLOB NOT NULL,
    expires_at INTEGER NOT NULL
);

-- Responses to requests that have an idempotency key. If a request is sent again, it gets the stored
-- response. The transaction that carries out a request also stores its response, so neither exists without
-- the other.
-- owner: the id of the operator token that sent the request; 0 means the token in the configuration.
-- request: the hash of the request. A different request with the same key is refused.
CREATE TABLE answers (
    owner       INTEGER NOT NULL,
    key         TEXT NOT NULL,
    request     BLOB NOT NULL,
    answer      TEXT NOT NULL,
    answered_at INTEGER NOT NULL,
    PRIMARY KEY (owner, key)
);
-- Used to delete old rows.
CREATE INDEX answers_answered_at ON answers (answered_at);

-- Events: the log of activity, which is also the audit log.
CREATE TABLE events (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    at     INTEGER NOT NULL,
    kind   TEXT NOT NULL,
    actor  TEXT NOT NULL DEFAULT '',
    actor_kind TEXT NOT NULL DEFAULT '', -- what the actor is: device, operator, program, registrant or unknown; actors of two kinds can have the same name
    pool   TEXT NOT NULL DEFAULT '',
    batch  INTEGER NOT NULL DEFAULT 0,
    task   INTEGER NOT NULL DEFAULT 0,
    device TEXT NOT NULL DEFAULT '',
    token  INTEGER NOT NULL DEFAULT 0,
    detail TEXT NOT NULL DEFAULT ''
);
-- For a filter that no index serves, the events are read along the primary key and checked one by one.

-- Used to list the events of a device, and to search them for the events of one of its tasks.
CREATE INDEX events_of_device ON events (device, id) WHERE device <> '';
-- Used to list the events of a pool, and to search them for the events of one of its batches.
CREATE INDEX events_of_pool ON events (pool, id) WHERE pool <> '';
-- Used to list the events of an actor. Most events of a device have the device as their actor. They are left out,
-- so that the index is small. The index events_of_device finds them.
CREATE INDEX events_of_actor ON events (actor, id) WHERE actor <> device;
-- Used to list the actions of operators and programs. Events of devices are left out, so that the index is small.
CREATE INDEX events_of_actor_kind ON events (actor_kind, id) WHERE actor_kind <> 'device';
-- Used to list the events of one kind. Events of tasks are left out, so that the index is small.
CREATE INDEX events_of_kind ON events (kind, id) WHERE kind NOT LIKE 'task.%';

-- Seals of the events, used to detect a change of the log. A seal covers a block of events and the hash of the
-- previous seal. The first row is the start of the chain. It has no events, or retention has deleted its
-- events.
-- after: the last event of the previous seal. The block has the events with after < id <= last. Because the column
--   is unique, no seal has two successors.
-- events: the number of events in the block; 0 in the first row.
-- at: the time of the sealing.
-- hash: SHA-256 in hexadecimal digits; EventSeal in the package store lists its input.
CREATE TABLE event_seals (
    last   INTEGER PRIMARY KEY,
    after  INTEGER NOT NULL UNIQUE,
    events INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    hash   TEXT NOT NULL
);
INSERT INTO event_seals (last, after, events, at, hash)
VALUES (0, -1, 0, (CAST(round(unixepoch('subsec') * 1000) AS INTEGER)), '0000000000000000000000000000000000000000000000000000000000000000');

-- Heartbeats of replicas. Each replica updates its own row every few seconds. If a row is no longer updated,
-- its replica has crashed or cannot reach the database.
-- reaped_at: the time at which the replica last ran the reaper; null means that it has not run yet.
-- tallies: the counters of the replica since it started.
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

-- The last period for which idle slot time was added up. Idle slot time is the time in which slots were free
-- and devices waited. All replicas share this one row, so that no period is counted twice.
-- taken_before: the start of the period.
-- taken_at: the end of the period.
CREATE TABLE idle_time (
    id           INTEGER PRIMARY KEY CHECK (id = 1),
    taken_before INTEGER NOT NULL,
    taken_at     INTEGER NOT NULL
);
INSERT INTO idle_time (id, taken_before, taken_at) VALUES (1, (CAST(round(unixepoch('subsec') * 1000) AS INTEGER)), (CAST(round(unixepoch('subsec') * 1000) AS INTEGER)));

-- The times of two clocks, read at the same moment. A replica that starts later uses the pair to find out
-- whether the clock of this database was changed, so that it ends no lease too early. The table has at most
-- one row; it is empty until a replica stores the first pair.
-- ledger: the time of the clock of this database that the replica trusted.
-- wall: the time of the clock of the replica's host.
CREATE TABLE clock_pair (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    ledger INTEGER NOT NULL,
    wall   INTEGER NOT NULL
);

-- Restores: one row for each time that this database was replaced by a backup that lacked commits.
-- until: a pool that is created after the restore makes no grant before this time. The lost commits may have
--   contained a pool of the same name with leases in force. Pools that existed at the restore have a time
--   of their own in pools.stands_until.
CREATE TABLE restores (
    id    INTEGER PRIMARY KEY AUTOINCREMENT,
    at    INTEGER NOT NULL,
    until INTEGER NOT NULL
);
-- Used when a pool is created, to find the latest value of "until".
CREATE INDEX restores_until ON restores (until);
-- +goose StatementEnd

-- +goose Down
DROP TABLE restores;
DROP TABLE clock_pair;
DROP TABLE idle_time;
DROP TABLE replicas;
DROP TABLE event_seals;
DROP TABLE events;
DROP TABLE answers;
DROP TABLE web_sessions;
DROP TABLE news;
DROP TABLE token_changes;
DROP TABLE token_uses;
DROP TABLE tokens;
DROP TABLE account_changes;
DROP TABLE deleted_devices;
DROP TABLE hawkbit_actions;
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
