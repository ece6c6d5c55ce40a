-- +goose Up
-- The last fencing token. Times are milliseconds since 1970.
CREATE TABLE grant_token (value INTEGER NOT NULL);
INSERT INTO grant_token VALUES (0);

CREATE TABLE pools (
    name       TEXT PRIMARY KEY,
    capacity   INTEGER NOT NULL CHECK (capacity BETWEEN 0 AND 10000),
    lease_ms   INTEGER NOT NULL CHECK (lease_ms > 0),
    paused     INTEGER NOT NULL DEFAULT false,
    version    INTEGER NOT NULL DEFAULT 1,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);

CREATE TABLE batches (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    name             TEXT NOT NULL DEFAULT '',
    pool             TEXT NOT NULL REFERENCES pools,
    kind             TEXT NOT NULL DEFAULT '',
    payload          TEXT,
    priority         INTEGER NOT NULL DEFAULT 0,
    weight           INTEGER NOT NULL DEFAULT 1,
    not_before       INTEGER,
    not_after        INTEGER,
    max_attempts     INTEGER NOT NULL DEFAULT 1,
    retry_on         TEXT NOT NULL DEFAULT '',
    retry_backoff_ms INTEGER NOT NULL DEFAULT 0,
    on_lost          TEXT NOT NULL DEFAULT '',
    lease_ms         INTEGER NOT NULL DEFAULT 0,
    max_run_ms       INTEGER NOT NULL DEFAULT 0,
    paused           INTEGER NOT NULL DEFAULT false,
    cancelled_at     INTEGER,
    created_at       INTEGER NOT NULL,
    total            INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX batches_not_after ON batches (not_after) WHERE not_after IS NOT NULL;

-- payload and output are kept as text: they come back byte for byte.
-- A grant does not write here: dispatched is a row in grants.
CREATE TABLE tasks (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    batch       INTEGER NOT NULL REFERENCES batches,
    pool        TEXT NOT NULL,
    device      TEXT NOT NULL,
    priority    INTEGER NOT NULL DEFAULT 0,
    payload     TEXT,
    state       TEXT NOT NULL DEFAULT 'pending'
                CHECK (state IN ('pending', 'succeeded', 'failed', 'timed_out', 'cancelled', 'expired')),
    attempts    INTEGER NOT NULL DEFAULT 0,
    returned    INTEGER NOT NULL DEFAULT 0,
    retry_at    INTEGER,
    finished_at INTEGER,
    output      TEXT,
    error       TEXT NOT NULL DEFAULT ''
);
CREATE INDEX tasks_open_of_device ON tasks (device) WHERE state = 'pending';
CREATE INDEX tasks_open_of_pool ON tasks (pool, device) WHERE state = 'pending';
CREATE INDEX tasks_of_batch ON tasks (batch, state);
CREATE INDEX tasks_of_pool ON tasks (pool, state, id);

-- The places in use. The unique keys are what makes a second grant of a
-- number, a device or a task impossible.
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
    redelivered INTEGER NOT NULL DEFAULT 0,
    cancel_why  TEXT NOT NULL DEFAULT '',
    UNIQUE (pool, slot),
    UNIQUE (device)
);
CREATE INDEX grants_lease_until ON grants (lease_until);
CREATE INDEX grants_of_batch ON grants (batch);

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
    error      TEXT NOT NULL DEFAULT ''
);
CREATE INDEX attempts_of_task ON attempts (task);

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

CREATE TABLE devices (
    id         TEXT PRIMARY KEY,
    blocked    INTEGER NOT NULL DEFAULT false,
    own_token  INTEGER NOT NULL DEFAULT false,
    tags       TEXT NOT NULL DEFAULT '{}',
    attributes TEXT NOT NULL DEFAULT '{}',
    created_at INTEGER NOT NULL,
    last_seen  INTEGER
);

CREATE TABLE tokens (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    name       TEXT NOT NULL DEFAULT '',
    device     TEXT NOT NULL DEFAULT '',
    role       TEXT NOT NULL DEFAULT '',
    hash       BLOB NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER
);
CREATE INDEX tokens_of_device ON tokens (device) WHERE device <> '';

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

-- There is one writer, so a token can be given with the row.
-- +goose StatementBegin
CREATE TRIGGER grants_token AFTER INSERT ON grants BEGIN
    UPDATE grant_token SET value = value + 1;
    UPDATE grants SET token = (SELECT value FROM grant_token) WHERE task = NEW.task;
END;
-- +goose StatementEnd

-- +goose Down
DROP TABLE events;
DROP TABLE tokens;
DROP TABLE devices;
DROP TABLE late_results;
DROP TABLE attempts;
DROP TABLE grants;
DROP TABLE tasks;
DROP TABLE batches;
DROP TABLE pools;
DROP TABLE grant_token;
