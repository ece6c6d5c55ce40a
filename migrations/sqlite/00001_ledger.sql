-- +goose Up
-- Times are milliseconds since 1970.

-- Pools: numbered slots, and what holds for all who run in them.
-- opens_at, closes_at: the opening that lasts, or the next; null: always open.
-- They are kept so that whether something may start is a comparison. windows_due:
-- when they are to be computed anew. limits: policies, as a JSON array; null: none.
-- callers: how many slots callers hold at most; null: as many as there are.
-- A deleted pool stays: its ended batches name it, and one of the same name
-- goes on with higher versions, which Redis takes for newer.
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
-- The pools that changed lately are asked for several times a second.
CREATE INDEX pools_updated_at ON pools (updated_at);
CREATE INDEX pools_windows_due ON pools (windows_due) WHERE windows_due IS NOT NULL;

-- Batches: what their tasks have in common. windows and limits are as in pools.
-- abort_ended, abort_failed: the counts when the rule began to count.
-- cancelling: cancelled, and not yet seen to be without open tasks.
-- wait_until: by when a task without a time of its own must have started; null: whenever.
-- system: of the leases of callers, which nobody queues.
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
-- For the passes.
CREATE INDEX batches_not_after ON batches (not_after) WHERE not_after IS NOT NULL;
CREATE INDEX batches_with_wait ON batches (id) WHERE wait_until IS NOT NULL;
CREATE INDEX batches_windows_due ON batches (windows_due) WHERE windows_due IS NOT NULL;
CREATE INDEX batches_cancelling ON batches (id) WHERE cancelling;
CREATE INDEX batches_limited ON batches (pool) WHERE limits IS NOT NULL;
-- Waiting devices are counted from the batches of a pool.
CREATE INDEX batches_of_pool ON batches (pool, id);
CREATE INDEX batches_of_kind ON batches (kind, id);
-- The newest of the leases of a pool.
CREATE INDEX batches_of_system ON batches (pool, id) WHERE system;
-- Urgent batches are few among all.
CREATE INDEX batches_urgent ON batches (id) WHERE lane = 'urgent';
CREATE INDEX batches_urgent_of_pool ON batches (pool, id) WHERE lane = 'urgent';

-- How many tasks of a batch ended in which state: these rows and the deltas
-- together. A task in neither, and without a grant, is pending.
CREATE TABLE batch_counts (
    batch INTEGER NOT NULL REFERENCES batches ON DELETE CASCADE,
    state TEXT NOT NULL,
    n     INTEGER NOT NULL,
    PRIMARY KEY (batch, state)
);

-- The same of all batches of a pool, and as 'queued' how many tasks they have.
CREATE TABLE pool_counts (
    pool  TEXT NOT NULL,
    state TEXT NOT NULL,
    n     INTEGER NOT NULL,
    PRIMARY KEY (pool, state)
);

-- Changes since the last folding. batch: 0: it only counts for the pool.
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

-- Tasks done in the last minutes, by folding.
CREATE TABLE batch_rates (
    batch INTEGER NOT NULL REFERENCES batches ON DELETE CASCADE,
    at    INTEGER NOT NULL,
    n     INTEGER NOT NULL
);
CREATE INDEX batch_rates_of_batch ON batch_rates (batch, at);
CREATE INDEX batch_rates_at ON batch_rates (at);

-- The fate of the slots of each pool in each minute in which something did, and its
-- capacity then: the curves of days are read from it. A minute is counted since 1970.
CREATE TABLE pool_minutes (
    pool     TEXT NOT NULL,
    minute   INTEGER NOT NULL,
    granted  INTEGER NOT NULL,
    ended    INTEGER NOT NULL,
    lapsed   INTEGER NOT NULL,
    capacity INTEGER NOT NULL,
    PRIMARY KEY (pool, minute)
) WITHOUT ROWID;
-- Old ones go.
CREATE INDEX pool_minutes_minute ON pool_minutes (minute);

-- Up to which event they are counted: one row.
CREATE TABLE minutes_counted (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    event INTEGER NOT NULL
);
INSERT INTO minutes_counted (id, event) VALUES (1, 0);

-- How batches went on, by folding: how many more tasks had ended at the end of each step.
-- Steps grow with the age of a batch, so that there are few, however long it takes.
-- since_ms: where the step begins, since the batch began. at: the last change in it.
CREATE TABLE batch_progress (
    batch    INTEGER NOT NULL REFERENCES batches ON DELETE CASCADE,
    since_ms INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    ended    INTEGER NOT NULL,
    failed   INTEGER NOT NULL,
    PRIMARY KEY (batch, since_ms)
) WITHOUT ROWID;

-- Tasks. A grant does not write here: dispatched is a row in grants.
-- payload and output are kept as text: they come back byte for byte.
-- own_priority: false: the task has the priority of its batch.
-- lease_ms: how long it holds a slot without a renewal; null: as its batch or pool says.
-- retry_at: not granted before: not_before at first, then the end of a backoff.
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
-- Each index costs every task that is queued: there is one for each question that is
-- asked all the time, and lists are filtered along them or, a bounded stretch at a time,
-- along the primary key.
-- The best open tasks of a device in each of its batches; all tasks of a device. batch * 1: no
-- other index can stand in for this one, whatever the planner knows of the table (Views).
CREATE INDEX tasks_of_device ON tasks (device, state, (batch * 1), own_priority, retry_at, priority DESC, id);
-- The tasks of a batch in a state, in the order of their ids; whether one of it is open.
CREATE INDEX tasks_of_batch ON tasks (batch, state, id);
-- The devices that may be offered a slot next: the waiting tasks of a batch, in its
-- order. The batches of a pool that something waits in, the oldest first.
CREATE INDEX tasks_in_line ON tasks (pool, batch, priority DESC, id) WHERE state = 'pending';
-- How many devices wait in a pool, from one to the next.
CREATE INDEX tasks_open_of_pool ON tasks (pool, device) WHERE state = 'pending';
-- Those that expire by themselves, for the pass. It costs nothing but the tasks that have it.
CREATE INDEX tasks_not_after ON tasks (not_after) WHERE not_after IS NOT NULL AND state = 'pending';

-- Every change of the state of a task is counted: no code path can forget it.
-- +goose StatementBegin
CREATE TRIGGER tasks_counted AFTER UPDATE OF state ON tasks WHEN OLD.state <> NEW.state BEGIN
    INSERT INTO batch_deltas (batch, pool, state, n) SELECT OLD.batch, OLD.pool, OLD.state, -1 WHERE OLD.state <> 'pending';
    INSERT INTO batch_deltas (batch, pool, state, n) SELECT NEW.batch, NEW.pool, NEW.state, 1 WHERE NEW.state <> 'pending';
END;
-- +goose StatementEnd

-- The last fencing token.
CREATE TABLE grant_token (value INTEGER NOT NULL);
INSERT INTO grant_token VALUES (0);

-- The slots in use. The unique keys are what makes a second grant of a
-- number, a device or a task impossible.
-- lease_ms: the length of a renewal that names none. longest_ms: the longest length that the
-- grant was ever given, for which the clock guard waits; null: lease_ms.
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
-- The slots that callers hold, of all that they may hold.
CREATE INDEX grants_of_callers ON grants (pool, device) WHERE device >= '@' AND device < 'A';
-- There is one writer, so a token can be given with the row.
-- +goose StatementBegin
CREATE TRIGGER grants_token AFTER INSERT ON grants BEGIN
    UPDATE grant_token SET value = value + 1;
    UPDATE grants SET token = (SELECT value FROM grant_token) WHERE task = NEW.task;
END;
-- +goose StatementEnd

-- Grants that ended.
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
-- The starts in a pool, newest first: policies would have counted them.
CREATE INDEX attempts_of_pool ON attempts (pool, token);

-- Results that could not be used: kept, and answered the same when repeated.
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
-- Old ones go.
CREATE INDEX late_results_received ON late_results (received_at);

-- Policies that devices share wherever they run something. limits is as in pools.
CREATE TABLE profiles (
    name       TEXT PRIMARY KEY,
    limits     TEXT,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);

-- The policies by which callers limit what they do. How often they did is in Redis alone.
CREATE TABLE limit_sets (
    name       TEXT PRIMARY KEY,
    limits     TEXT,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);

-- Devices. reach is how one can be told of a slot: 0 it polls, 1 pushed to, 2 its
-- requests wait.
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
-- The few that are left out where it is counted who waits.
CREATE INDEX devices_blocked ON devices (id) WHERE blocked;

-- Ids of devices that were deleted and not registered again: their sessions at
-- a broker may still be open, and must not bring them back. One that was blocked
-- comes back blocked.
CREATE TABLE deleted_devices (
    id         TEXT PRIMARY KEY,
    deleted_at INTEGER NOT NULL,
    blocked    INTEGER NOT NULL DEFAULT false
);

-- Changes of devices that their accounts at the MQTT broker have yet to follow.
CREATE TABLE account_changes (
    device     TEXT PRIMARY KEY,
    wanted     TEXT NOT NULL CHECK (wanted IN ('enabled', 'disabled', 'deleted')),
    changed_at INTEGER NOT NULL, -- it is due from then on
    stage      INTEGER NOT NULL DEFAULT 0 -- of the import that makes the account, and takes this note away with its COMMIT
);
CREATE INDEX account_changes_due ON account_changes ((stage <> 0), changed_at, device);

-- Tokens of devices and of operators, by their hashes. Those of callers have patterns of
-- pools and of limit sets, in lists.
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
-- A name in the log is one operator's.
CREATE UNIQUE INDEX tokens_by_name ON tokens (name) WHERE device = '' AND revoked_at IS NULL;

-- When an operator token was used last, to within an hour. Beside tokens, whose changes
-- all replicas are told of.
CREATE TABLE token_uses (
    token   INTEGER PRIMARY KEY REFERENCES tokens ON DELETE CASCADE,
    used_at INTEGER NOT NULL
);

-- The tokens that were changed or deleted lately: no code path can forget to note it.
-- Replicas read this, and forget them; an empty hash stands for all tokens.
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

-- Changes that may make work for devices, or that decide who may act for them, in the order of the
-- commits. Replicas mark these devices in Redis. It is about one device, about all that a
-- batch has open tasks for, or, with neither, about all devices.
CREATE TABLE news (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    at     INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER)),
    batch  INTEGER NOT NULL DEFAULT 0,
    device TEXT NOT NULL DEFAULT ''
);
-- There is always a newest one.
INSERT INTO news DEFAULT VALUES;

-- The operators signed in to the dashboard: the hash of the cookie, and that of the
-- operator token it was opened with.
CREATE TABLE web_sessions (
    hash       BLOB PRIMARY KEY,
    token_hash BLOB NOT NULL,
    expires_at INTEGER NOT NULL
);

-- The answers to requests with an idempotency key, written with their
-- effect. The owner is the operator token, 0 the one of the configuration.
CREATE TABLE answers (
    owner       INTEGER NOT NULL,
    key         TEXT NOT NULL,
    request     BLOB NOT NULL,
    answer      TEXT NOT NULL,
    answered_at INTEGER NOT NULL,
    PRIMARY KEY (owner, key)
);
CREATE INDEX answers_answered_at ON answers (answered_at);

-- The log of all that happened.
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
-- It is read in the order of the ids. By device; by pool; and the acts of
-- others than the devices, which are few. Events of a task stand with its device,
-- those of a batch with its pool, and the others are looked through along the primary key.
CREATE INDEX events_of_device ON events (device, id) WHERE device <> '';
CREATE INDEX events_of_pool ON events (pool, id) WHERE pool <> '';
CREATE INDEX events_of_actor ON events (actor, id) WHERE actor <> device;

-- The word of each replica on itself every few seconds. A row that grows old is a
-- replica that ended.
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

-- Until when the time of free slots was counted, and since when the last piece
-- of it: one row.
CREATE TABLE idle_time (
    id           INTEGER PRIMARY KEY CHECK (id = 1),
    taken_before INTEGER NOT NULL,
    taken_at     INTEGER NOT NULL
);
INSERT INTO idle_time (id, taken_before, taken_at) VALUES (1, (CAST(round(unixepoch('subsec') * 1000) AS INTEGER)), (CAST(round(unixepoch('subsec') * 1000) AS INTEGER)));

-- The time that the clock of this database showed, as far as it was believed, when the
-- clock of a replica's host showed wall: one row, once that is known.
CREATE TABLE clock_pair (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    ledger INTEGER NOT NULL,
    wall   INTEGER NOT NULL
);

-- Each time the ledger came back from a backup that lacked commits. until: a pool that is
-- created afterwards grants nothing before it, because the lost part of the ledger may have had a pool
-- of its name. The other pools have their own time in pools.stands_until.
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
