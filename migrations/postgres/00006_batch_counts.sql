-- +goose Up
-- A migration may take longer than any request is allowed to.
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = 0;

-- How many tasks of a batch ended in which state: these rows and the deltas
-- together. What is in neither, and has no grant, is pending.
CREATE TABLE batch_counts (
    batch bigint NOT NULL REFERENCES batches ON DELETE CASCADE,
    state text COLLATE "C" NOT NULL,
    n     bigint NOT NULL,
    PRIMARY KEY (batch, state)
) WITH (fillfactor = 50);

-- What changed since the last folding, a row for each statement: so results of
-- one batch never wait for one another. No foreign key: it would lock the batch.
CREATE TABLE batch_deltas (
    id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    batch bigint NOT NULL,
    state text COLLATE "C" NOT NULL,
    n     integer NOT NULL,
    at    timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
CREATE INDEX batch_deltas_of_batch ON batch_deltas (batch);

-- Tasks done in the last minutes, by folding.
CREATE TABLE batch_rates (
    batch bigint NOT NULL REFERENCES batches ON DELETE CASCADE,
    at    timestamptz NOT NULL,
    n     bigint NOT NULL
);
CREATE INDEX batch_rates_of_batch ON batch_rates (batch, at);
CREATE INDEX batch_rates_at ON batch_rates (at);

-- Whoever changes the state of tasks is counted: no code path can forget it.
-- +goose StatementBegin
CREATE FUNCTION count_tasks() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO batch_deltas (batch, state, n)
    SELECT batch, state, sum(n) FROM (
        SELECT batch, state, 1 AS n FROM became WHERE state <> 'pending'
        UNION ALL
        SELECT batch, state, -1 FROM was WHERE state <> 'pending') AS changes
    GROUP BY batch, state HAVING sum(n) <> 0;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER tasks_counted AFTER UPDATE ON tasks
    REFERENCING OLD TABLE AS was NEW TABLE AS became
    FOR EACH STATEMENT EXECUTE FUNCTION count_tasks();

INSERT INTO batch_counts (batch, state, n)
    SELECT batch, state, count(*) FROM tasks WHERE state <> 'pending' GROUP BY batch, state;

-- abort_ended, abort_failed: the counts when the rule began to count.
ALTER TABLE batches
    ADD COLUMN abort_failure double precision NOT NULL DEFAULT 0,
    ADD COLUMN abort_min bigint NOT NULL DEFAULT 0,
    ADD COLUMN abort_ended bigint NOT NULL DEFAULT 0,
    ADD COLUMN abort_failed bigint NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE batches DROP COLUMN abort_failed, DROP COLUMN abort_ended, DROP COLUMN abort_min, DROP COLUMN abort_failure;
DROP TRIGGER tasks_counted ON tasks;
DROP FUNCTION count_tasks;
DROP TABLE batch_rates, batch_deltas, batch_counts;
