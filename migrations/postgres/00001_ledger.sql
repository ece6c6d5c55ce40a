-- +goose Up
-- goose sends a StatementBegin block as one text. Outside of such a block, goose would allocate 4 MB to parse a line.
-- +goose StatementBegin
-- These settings disable the timeouts, because a migration may run longer than a request.
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = 0;

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
    name         text COLLATE "C" PRIMARY KEY,
    capacity     integer NOT NULL CHECK (capacity BETWEEN 0 AND 10000),
    lease_ms     bigint NOT NULL CHECK (lease_ms > 0),
    paused       boolean NOT NULL DEFAULT false,
    paused_by    text NOT NULL DEFAULT '',
    paused_at    timestamptz,
    pause_reason text NOT NULL DEFAULT '',
    windows      json,
    opens_at     timestamptz,
    closes_at    timestamptz,
    windows_due  timestamptz,
    limits       json,
    callers      integer CHECK (callers BETWEEN 0 AND 10000),
    longest_ms   bigint NOT NULL DEFAULT 86400000 CHECK (longest_ms > 0),
    sleep_ms     bigint NOT NULL DEFAULT 600000 CHECK (sleep_ms > 0),
    stands_until timestamptz,
    version      bigint NOT NULL DEFAULT 1,
    created_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL,
    deleted_at   timestamptz
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
    id               bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    name             text NOT NULL DEFAULT '',
    pool             text COLLATE "C" NOT NULL REFERENCES pools,
    kind             text NOT NULL DEFAULT '',
    payload          json,
    priority         integer NOT NULL DEFAULT 0,
    weight           integer NOT NULL DEFAULT 1,
    lane             text NOT NULL DEFAULT 'normal',
    not_before       timestamptz,
    not_after        timestamptz,
    max_wait_ms      bigint NOT NULL DEFAULT 0,
    wait_until       timestamptz,
    windows          json,
    finish_inside    boolean NOT NULL DEFAULT true,
    opens_at         timestamptz,
    closes_at        timestamptz,
    windows_due      timestamptz,
    limits           json,
    max_attempts     integer NOT NULL DEFAULT 1,
    retry_on         text NOT NULL DEFAULT '',
    retry_backoff_ms bigint NOT NULL DEFAULT 0,
    on_lost          text NOT NULL DEFAULT '',
    lease_ms         bigint NOT NULL DEFAULT 0,
    max_run_ms       bigint NOT NULL DEFAULT 0,
    abort_failure    double precision NOT NULL DEFAULT 0,
    abort_min        bigint NOT NULL DEFAULT 0,
    abort_ended      bigint NOT NULL DEFAULT 0,
    abort_failed     bigint NOT NULL DEFAULT 0,
    paused           boolean NOT NULL DEFAULT false,
    paused_by        text NOT NULL DEFAULT '',
    paused_at        timestamptz,
    pause_reason     text NOT NULL DEFAULT '',
    cancelled_at     timestamptz,
    cancelling       boolean NOT NULL DEFAULT false,
    created_at       timestamptz NOT NULL,
    total            bigint NOT NULL DEFAULT 0,
    system           boolean NOT NULL DEFAULT false,
    failed_tasks     bigint NOT NULL DEFAULT 0,
    ended_at         timestamptz,
    is_deployment    boolean NOT NULL DEFAULT false
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
    batch bigint NOT NULL REFERENCES batches ON DELETE CASCADE,
    state text COLLATE "C" NOT NULL,
    n     bigint NOT NULL,
    PRIMARY KEY (batch, state)
) WITH (fillfactor = 50);

-- The number of tasks of each pool that ended in each final state, as of the last fold. The present number is
-- the sum of this table and batch_deltas, as in batch_counts. The row with the state 'queued' has the number of
-- all tasks of the pool, open or ended. Without this table, the overview of a pool would add up the counts of
-- thousands of batches.
CREATE TABLE pool_counts (
    pool  text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    n     bigint NOT NULL,
    PRIMARY KEY (pool, state)
) WITH (fillfactor = 50);

-- Changes of task counts that batch_counts and pool_counts do not include yet. A fold adds these rows to the
-- counts and deletes them. Each change is a row of its own, so that transactions with results of the same batch
-- never wait for one another. The table has no foreign key, because the check of a foreign key would lock the
-- row of the batch.
-- batch: the id of the batch whose count also changes; 0 means that only the count of the pool changes.
-- n: the number to add to the count; it can be negative.
CREATE TABLE batch_deltas (
    id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    batch bigint NOT NULL,
    pool  text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    n     integer NOT NULL,
    at    timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
-- Used to read the changes of the counts of one batch that are not yet in batch_counts.
CREATE INDEX batch_deltas_of_batch ON batch_deltas (batch);
-- The trigger batches_counted records each change of the number of all tasks of a pool (state 'queued') in
-- batch_deltas.
CREATE FUNCTION count_queued() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO batch_deltas (batch, pool, state, n)
    SELECT 0, coalesce(NEW.pool, OLD.pool), 'queued', n FROM (SELECT coalesce(NEW.total, 0) - coalesce(OLD.total, 0) AS n) AS change WHERE n <> 0;
    RETURN NULL;
END $$;
CREATE TRIGGER batches_counted AFTER INSERT OR DELETE OR UPDATE OF total ON batches FOR EACH ROW EXECUTE FUNCTION count_queued();

-- The recent speed of each batch. For each batch with ended tasks, a fold inserts one row. Rows are deleted
-- after some minutes.
-- n: the number of tasks that succeeded, failed or timed out since the previous fold.
CREATE TABLE batch_rates (
    batch bigint NOT NULL REFERENCES batches ON DELETE CASCADE,
    at    timestamptz NOT NULL,
    n     bigint NOT NULL
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
    pool     text COLLATE "C" NOT NULL,
    minute   bigint NOT NULL,
    granted  integer NOT NULL,
    ended    integer NOT NULL,
    lapsed   integer NOT NULL,
    failed   integer NOT NULL,
    capacity integer NOT NULL,
    PRIMARY KEY (pool, minute)
) WITH (fillfactor = 70);
-- Used to delete old rows.
CREATE INDEX pool_minutes_minute ON pool_minutes (minute);

-- The position up to which the events are counted in the table pool_minutes. The table has one row.
-- event: the id of the last event that pool_minutes includes.
CREATE TABLE minutes_counted (
    id    smallint PRIMARY KEY CHECK (id = 1),
    event bigint NOT NULL
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
    batch    bigint NOT NULL REFERENCES batches ON DELETE CASCADE,
    since_ms bigint NOT NULL,
    at       timestamptz NOT NULL,
    ended    bigint NOT NULL,
    failed   bigint NOT NULL,
    PRIMARY KEY (batch, since_ms)
);

-- Tasks: a task is one job for one device in one pool. A task is dispatched while it has a row in grants. Its
-- own row does not change with a grant. So the state 'pending' means that the task is open: it waits or it is
-- dispatched.
-- own_priority: true if the task has a priority of its own; false means that it has the priority of its batch.
-- payload, output: JSON texts. The type is json, not jsonb, so that the texts are returned byte for byte.
-- attempts: the number of ended attempts that count against max_attempts.
-- returned: the number of other attempts in which the device handed the task back, since the last retry by an
--   operator. Neither column counts a return because of a pause of the pool.
-- started: true if the task has an ended attempt, also one that neither column counts.
-- retry_at: the time before which the task is not granted. It is the not_before of the task at first, and the
--   end of the backoff after an attempt.
-- lease_ms: the length of a lease of this task until its first renewal; null means that the batch or the pool
--   sets the length.
-- output_dropped: true if the device sent an output that was too large to be stored. The column is narrow,
--   because Postgres estimates the number of tasks from the width of the columns until it has counted the
--   tasks.
CREATE TABLE tasks (
    id           bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    batch        bigint NOT NULL REFERENCES batches,
    pool         text COLLATE "C" NOT NULL,
    device       text COLLATE "C" NOT NULL,
    priority     integer NOT NULL DEFAULT 0,
    own_priority boolean NOT NULL DEFAULT true,
    payload      json,
    state        text COLLATE "C" NOT NULL DEFAULT 'pending'
                 CHECK (state IN ('pending', 'succeeded', 'failed', 'timed_out', 'cancelled', 'expired', 'suppressed')),
    attempts     integer NOT NULL DEFAULT 0,
    returned     integer NOT NULL DEFAULT 0,
    started      boolean NOT NULL DEFAULT false,
    not_before   timestamptz,
    not_after    timestamptz,
    retry_at     timestamptz,
    lease_ms     bigint,
    finished_at  timestamptz,
    output       json,
    output_dropped boolean NOT NULL DEFAULT false,
    error        text NOT NULL DEFAULT ''
);
-- Each index on tasks slows down the queueing of every task. So there are indexes only for queries that run
-- all the time. A list of tasks is read along one index and then filtered. If no index fits, the list is read along the
-- primary key, at most a fixed number of ids at a time.

-- Used to find the best open tasks of a device in each of its batches, and to list all tasks of a device.
-- Only this index has the expression batch * 1. So a query with batch * 1 uses this index, whatever the
-- statistics of the planner are (viewsText in the package store).
CREATE INDEX tasks_of_device ON tasks (device, state, (batch * 1), own_priority, retry_at NULLS FIRST, priority DESC, id);
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
CREATE FUNCTION count_tasks() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO batch_deltas (batch, pool, state, n)
    SELECT batch, pool, state, sum(n) FROM (
        SELECT batch, pool, state, 1 AS n FROM became WHERE state <> 'pending'
        UNION ALL
        SELECT batch, pool, state, -1 FROM was WHERE state <> 'pending') AS changes
    GROUP BY batch, pool, state HAVING sum(n) <> 0;
    RETURN NULL;
END $$;
CREATE TRIGGER tasks_counted AFTER UPDATE ON tasks
    REFERENCING OLD TABLE AS was NEW TABLE AS became
    FOR EACH STATEMENT EXECUTE FUNCTION count_tasks();

-- Fencing tokens: each grant receives the next number, and a result with an older number is ignored. CACHE
-- must be 1. With a larger cache, each connection would reserve numbers in advance, so a newer grant of a
-- slot could receive a lower number than an older grant.
CREATE SEQUENCE grant_token AS bigint MAXVALUE 9007199254740991 CACHE 1;

-- Grants in force: one row for each slot in use. The unique keys make a second grant of a slot, a device or a
-- task impossible. The table is small and often updated. So its pages have free space for new versions of
-- rows, and Postgres vacuums it after few changes.
-- lease: the id of the lease that holds the slot in Redis.
-- max_until: the lease cannot be renewed beyond this time.
-- lease_ms: the length of a renewal if its request does not ask for another length.
-- longest_ms: the longest length that the lease ever had; null means that it is the value of lease_ms. The
--   reaper uses it to decide when the lease is over.
-- redelivered: how often the grant was sent to the device again.
-- cancel_why: the reason why the device is asked to stop; empty means that it is not asked to stop.
CREATE TABLE grants (
    task        bigint PRIMARY KEY,
    batch       bigint NOT NULL,
    pool        text COLLATE "C" NOT NULL,
    slot        integer NOT NULL CHECK (slot >= 0),
    device      text COLLATE "C" NOT NULL,
    token       bigint NOT NULL,
    lease       text COLLATE "C" NOT NULL,
    attempt     integer NOT NULL,
    granted_at  timestamptz NOT NULL,
    lease_until timestamptz NOT NULL,
    max_until   timestamptz NOT NULL,
    lease_ms    bigint NOT NULL,
    longest_ms  bigint,
    redelivered integer NOT NULL DEFAULT 0,
    cancel_why  text NOT NULL DEFAULT '',
    UNIQUE (pool, slot),
    UNIQUE (device)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
-- Used to find the grants whose leases end first.
CREATE INDEX grants_lease_until ON grants (lease_until);
-- Used to count the slots of a pool that callers hold. In a grant of a caller, the column device begins with
-- @.
CREATE INDEX grants_of_callers ON grants (pool, device) WHERE device >= '@' AND device < 'A';

-- Attempts: one row for each grant that has ended. A task can have several attempts.
CREATE TABLE attempts (
    token      bigint PRIMARY KEY,
    task       bigint NOT NULL,
    number     integer NOT NULL,
    device     text COLLATE "C" NOT NULL,
    pool       text COLLATE "C" NOT NULL,
    slot       integer NOT NULL,
    lease      text COLLATE "C" NOT NULL,
    granted_at timestamptz NOT NULL,
    ended_at   timestamptz NOT NULL,
    ended_by   text NOT NULL,
    output     json,
    output_dropped boolean NOT NULL DEFAULT false,
    error      text NOT NULL DEFAULT ''
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
    device      text COLLATE "C" NOT NULL,
    task        bigint NOT NULL,
    token       bigint NOT NULL,
    known       boolean NOT NULL,
    cause       text NOT NULL,
    output      json,
    error       text NOT NULL DEFAULT '',
    received_at timestamptz NOT NULL,
    PRIMARY KEY (device, task, token)
);
-- Used to delete old rows.
CREATE INDEX late_results_received ON late_results (received_at);

-- Profiles: named sets of policies for devices. A policy is a rule about how often tasks may start. The
-- policies of a profile apply to each device of the profile, in every pool.
-- limits: the policies, as a JSON array; null means that there are none.
-- metadata_only: true if devices that speak hawkBit's DDI also get tasks whose payload is no DDI deployment.
CREATE TABLE profiles (
    name          text COLLATE "C" PRIMARY KEY,
    limits        json,
    metadata_only boolean NOT NULL DEFAULT false,
    version       bigint NOT NULL,
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL
);

-- Limit sets: named sets of policies by which callers limit their own work, without a slot. Only Redis stores
-- how much of a policy is used.
-- limits: the policies, as a JSON array; null means that there are none.
CREATE TABLE limit_sets (
    name       text COLLATE "C" PRIMARY KEY,
    limits     json,
    version    bigint NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);

-- Devices. The rows of all devices are updated once a minute. So the pages have free space for new versions
-- of rows. No index contains last_seen or quiet_until, so that these updates write to no index.
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
    id         text COLLATE "C" PRIMARY KEY,
    blocked    boolean NOT NULL DEFAULT false,
    own_token  boolean NOT NULL DEFAULT false,
    tags       jsonb NOT NULL DEFAULT '{}',
    attributes json NOT NULL DEFAULT '{}',
    profile    text COLLATE "C" REFERENCES profiles,
    reach      smallint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL,
    last_seen  timestamptz,
    quiet_until timestamptz,
    noisy_at   timestamptz,
    registered_by text NOT NULL DEFAULT '',
    blocked_by text NOT NULL DEFAULT '',
    blocked_at timestamptz,
    block_reason text NOT NULL DEFAULT '',
    wire       text NOT NULL DEFAULT ''
) WITH (fillfactor = 50);
-- Used to select the devices of a new batch by their tags.
CREATE INDEX devices_tags ON devices USING gin (tags jsonb_path_ops);
-- Used to list the devices of a profile.
CREATE INDEX devices_of_profile ON devices (profile, id) WHERE profile IS NOT NULL;
-- Used to find out whether any device can be notified of a slot. The index contains no time, so that a report
-- of a device does not write to the index.
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
    device text COLLATE "C" PRIMARY KEY,
    action integer NOT NULL DEFAULT 0,
    last   integer NOT NULL CHECK (last BETWEEN 0 AND 2000000000),
    task   bigint NOT NULL DEFAULT 0,
    token  bigint NOT NULL DEFAULT 0,
    state  text NOT NULL DEFAULT 'closed',
    asks   boolean NOT NULL DEFAULT true
) WITH (fillfactor = 70);

-- Devices that were deleted and have not been registered again since. A deleted device may still be connected
-- to an MQTT broker. If it sends a report over this connection, the report must not register it again.
-- blocked: true if the device was blocked when it was deleted. If the device is registered again, it is
--   blocked again, with the same blocked_by, blocked_at and block_reason.
-- refused: true if only an operator may register the device again.
CREATE TABLE deleted_devices (
    id         text COLLATE "C" PRIMARY KEY,
    deleted_at timestamptz NOT NULL,
    blocked    boolean NOT NULL DEFAULT false,
    refused    boolean NOT NULL DEFAULT false,
    blocked_by text NOT NULL DEFAULT '',
    blocked_at timestamptz,
    block_reason text NOT NULL DEFAULT ''
);

-- Changes that must still be made to the accounts of devices at the MQTT broker. A device has at most one
-- row.
-- wanted: the state that the account must get.
-- changed_at: the time at which the change becomes due.
-- stage: the number of the import of devices that creates the account; 0 means no import. The import deletes
--   the row in its last transaction. If that transaction does not commit, the row stays, and the account is
--   deleted when the row is due. So a failed import leaves no accounts.
CREATE TABLE account_changes (
    device     text COLLATE "C" PRIMARY KEY,
    wanted     text NOT NULL CHECK (wanted IN ('enabled', 'disabled', 'deleted')),
    changed_at timestamptz NOT NULL,
    stage      bigint NOT NULL DEFAULT 0
);
-- Used to find the changes that are due. Changes that belong to no import come first.
CREATE INDEX account_changes_due ON account_changes ((stage <> 0), changed_at, device);

-- Tokens: the secrets by which devices, callers and operators authenticate. Only the hash of a token is stored.
-- pools: the pools that the token of a caller covers: a JSON array of name patterns.
-- limit_sets: the limit sets that the token of a caller covers: a JSON array of name patterns.
CREATE TABLE tokens (
    id         bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    name       text NOT NULL DEFAULT '',
    device     text COLLATE "C" NOT NULL DEFAULT '',
    role       text NOT NULL DEFAULT '',
    pools      json,
    limit_sets json,
    hash       bytea NOT NULL UNIQUE,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz
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
    token    bigint PRIMARY KEY REFERENCES tokens ON DELETE CASCADE,
    used_at  timestamptz NOT NULL,
    requests bigint NOT NULL
);

-- Tokens that were changed or deleted recently. Replicas read these rows and remove the tokens from their
-- caches. Triggers of the table tokens write the rows, so that no code path can forget a change.
-- turn: the id of the transaction that made the change. Each read of a replica begins at the lowest id of the
--   transactions that were in progress at its previous read. So a read misses no change that was committed
--   after the previous read.
-- hash: the hash of the changed token. An empty hash means that all tokens changed.
CREATE TABLE token_changes (
    turn   bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    hash   bytea NOT NULL,
    device text COLLATE "C" NOT NULL DEFAULT '',
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (turn, hash)
);
CREATE FUNCTION note_tokens() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO token_changes (hash, device) SELECT hash, device FROM was ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER tokens_changed AFTER UPDATE ON tokens
    REFERENCING OLD TABLE AS was FOR EACH STATEMENT EXECUTE FUNCTION note_tokens();
CREATE TRIGGER tokens_deleted AFTER DELETE ON tokens
    REFERENCING OLD TABLE AS was FOR EACH STATEMENT EXECUTE FUNCTION note_tokens();

-- News: changes that may give work to devices, or that change who may act for a device. Replicas read the
-- news and set marks in Redis. A mark means that a device has work; a device without a mark is answered
-- without a read of this database. The ids rise in the order of the commits, because a transaction takes the
-- ids under a lock that it holds until its commit. So a reader misses no row.
-- batch: the id of a batch. The row concerns all devices that have open tasks in this batch.
-- device: the id of a device. The row concerns this device.
-- pool: the name of a pool, or '*' for all pools. The row concerns the devices that wait in the pool: they may
--   start earlier or later, or wait for another reason.
-- If batch is 0, and device and pool are empty, the row concerns all devices.
CREATE TABLE news (
    id     bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    batch  bigint NOT NULL DEFAULT 0,
    device text COLLATE "C" NOT NULL DEFAULT '',
    pool   text COLLATE "C" NOT NULL DEFAULT ''
);
-- The table news must have a newest id at all times, so it starts with one row.
INSERT INTO news DEFAULT VALUES;

-- Sessions of operators in the dashboard (the web pages).
-- hash: the hash of the session cookie.
-- token_hash: the hash of the operator token with which the session was opened.
CREATE TABLE web_sessions (
    hash       bytea PRIMARY KEY,
    token_hash bytea NOT NULL,
    expires_at timestamptz NOT NULL
);

-- Responses to requests that have an idempotency key. If a request is sent again, it gets the stored
-- response. The transaction that carries out a request also stores its response, so neither exists without
-- the other.
-- owner: the id of the operator token that sent the request; 0 means the token in the configuration.
-- request: the hash of the request. A different request with the same key is refused.
CREATE TABLE answers (
    owner       bigint NOT NULL,
    key         text COLLATE "C" NOT NULL,
    request     bytea NOT NULL,
    answer      json NOT NULL,
    answered_at timestamptz NOT NULL,
    PRIMARY KEY (owner, key)
);
-- Used to delete old rows.
CREATE INDEX answers_answered_at ON answers (answered_at);

-- Events: the log of activity, which is also the audit log.
CREATE TABLE events (
    id     bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL,
    kind   text NOT NULL,
    actor  text NOT NULL DEFAULT '',
    actor_kind text NOT NULL DEFAULT '', -- what the actor is: device, operator, program, registrant or unknown; actors of two kinds can have the same name
    pool   text COLLATE "C" NOT NULL DEFAULT '',
    batch  bigint NOT NULL DEFAULT 0,
    task   bigint NOT NULL DEFAULT 0,
    device text COLLATE "C" NOT NULL DEFAULT '',
    token  bigint NOT NULL DEFAULT 0,
    detail text NOT NULL DEFAULT ''
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

-- The trigger events_begin makes Postgres give the transaction its id before its events get their ids. So a
-- transaction with an event id that has not ended is always in the list of transactions in progress.
-- EventsComplete in the package store relies on this list.
CREATE FUNCTION events_begin() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_current_xact_id();
    RETURN NULL;
END $$;
CREATE TRIGGER events_begin BEFORE INSERT ON events FOR EACH STATEMENT EXECUTE FUNCTION events_begin();

-- Seals of the events, used to detect a change of the log. A seal covers a block of events and the hash of the
-- previous seal. The first row is the start of the chain. It has no events, or retention has deleted its
-- events.
-- after: the last event of the previous seal. The block has the events with after < id <= last. Because the column
--   is unique, no seal has two successors.
-- events: the number of events in the block; 0 in the first row.
-- at: the time of the sealing.
-- hash: SHA-256 in hexadecimal digits; EventSeal in the package store lists its input.
CREATE TABLE event_seals (
    last   bigint PRIMARY KEY,
    after  bigint NOT NULL UNIQUE,
    events bigint NOT NULL,
    at     timestamptz NOT NULL,
    hash   text NOT NULL
);
INSERT INTO event_seals (last, after, events, at, hash)
VALUES (0, -1, 0, date_trunc('milliseconds', now()), '0000000000000000000000000000000000000000000000000000000000000000');

-- Heartbeats of replicas. Each replica updates its own row every few seconds. If a row is no longer updated,
-- its replica has crashed or cannot reach the database.
-- reaped_at: the time at which the replica last ran the reaper; null means that it has not run yet.
-- tallies: the counters of the replica since it started.
CREATE TABLE replicas (
    id         text PRIMARY KEY,
    host       text NOT NULL,
    address    text NOT NULL,
    version    text NOT NULL,
    started_at timestamptz NOT NULL,
    seen_at    timestamptz NOT NULL,
    reaped_at  timestamptz,
    state      text NOT NULL,
    tallies    text NOT NULL
);

-- The last period for which idle slot time was added up. Idle slot time is the time in which slots were free
-- and devices waited. All replicas share this one row, so that no period is counted twice.
-- taken_before: the start of the period.
-- taken_at: the end of the period.
CREATE TABLE idle_time (
    id           smallint PRIMARY KEY CHECK (id = 1),
    taken_before timestamptz NOT NULL,
    taken_at     timestamptz NOT NULL
);
INSERT INTO idle_time (id, taken_before, taken_at) VALUES (1, now(), now());

-- The times of two clocks, read at the same moment. A replica that starts later uses the pair to find out
-- whether the clock of this database was changed, so that it ends no lease too early. The table has at most
-- one row; it is empty until a replica stores the first pair.
-- ledger: the time of the clock of this database that the replica trusted.
-- wall: the time of the clock of the replica's host.
CREATE TABLE clock_pair (
    id     smallint PRIMARY KEY CHECK (id = 1),
    ledger timestamptz NOT NULL,
    wall   timestamptz NOT NULL
);

-- Restores: one row for each time that this database was replaced by a backup or a standby that lacked
-- commits.
-- until: a pool that is created after the restore makes no grant before this time. The lost commits may have
--   contained a pool of the same name with leases in force. Pools that existed at the restore have a time
--   of their own in pools.stands_until.
CREATE TABLE restores (
    id    bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    at    timestamptz NOT NULL,
    until timestamptz NOT NULL
);
-- Used when a pool is created, to find the latest value of "until".
CREATE INDEX restores_until ON restores (until);
-- +goose StatementEnd

-- +goose Down
DROP TABLE restores, clock_pair, idle_time, replicas, event_seals, events, answers, web_sessions, news, token_changes, token_uses, tokens, account_changes, deleted_devices, hawkbit_actions, devices,
    profiles, limit_sets, late_results, attempts, grants, tasks, batch_progress, batch_rates, batch_deltas, minutes_counted, pool_minutes, pool_counts, batch_counts, batches, pools;
DROP FUNCTION events_begin, note_tokens, count_tasks, count_queued;
DROP SEQUENCE grant_token;
