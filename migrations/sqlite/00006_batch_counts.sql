-- +goose Up
-- How many tasks of a batch ended in which state: these rows and the deltas
-- together. What is in neither, and has no grant, is pending.
CREATE TABLE batch_counts (
    batch INTEGER NOT NULL REFERENCES batches ON DELETE CASCADE,
    state TEXT NOT NULL,
    n     INTEGER NOT NULL,
    PRIMARY KEY (batch, state)
);

-- What changed since the last folding.
CREATE TABLE batch_deltas (
    id    INTEGER PRIMARY KEY AUTOINCREMENT,
    batch INTEGER NOT NULL,
    state TEXT NOT NULL,
    n     INTEGER NOT NULL,
    at    INTEGER NOT NULL DEFAULT (CAST(round(unixepoch('subsec') * 1000) AS INTEGER))
);
CREATE INDEX batch_deltas_of_batch ON batch_deltas (batch);

-- Tasks done in the last minutes, by folding.
CREATE TABLE batch_rates (
    batch INTEGER NOT NULL REFERENCES batches ON DELETE CASCADE,
    at    INTEGER NOT NULL,
    n     INTEGER NOT NULL
);
CREATE INDEX batch_rates_of_batch ON batch_rates (batch, at);
CREATE INDEX batch_rates_at ON batch_rates (at);

-- Whoever changes the state of a task is counted: no code path can forget it.
-- +goose StatementBegin
CREATE TRIGGER tasks_counted AFTER UPDATE OF state ON tasks WHEN OLD.state <> NEW.state BEGIN
    INSERT INTO batch_deltas (batch, state, n) SELECT OLD.batch, OLD.state, -1 WHERE OLD.state <> 'pending';
    INSERT INTO batch_deltas (batch, state, n) SELECT NEW.batch, NEW.state, 1 WHERE NEW.state <> 'pending';
END;
-- +goose StatementEnd

INSERT INTO batch_counts (batch, state, n)
    SELECT batch, state, count(*) FROM tasks WHERE state <> 'pending' GROUP BY batch, state;

-- abort_ended, abort_failed: the counts when the rule began to count.
ALTER TABLE batches ADD COLUMN abort_failure REAL NOT NULL DEFAULT 0;
ALTER TABLE batches ADD COLUMN abort_min INTEGER NOT NULL DEFAULT 0;
ALTER TABLE batches ADD COLUMN abort_ended INTEGER NOT NULL DEFAULT 0;
ALTER TABLE batches ADD COLUMN abort_failed INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE batches DROP COLUMN abort_failed;
ALTER TABLE batches DROP COLUMN abort_ended;
ALTER TABLE batches DROP COLUMN abort_min;
ALTER TABLE batches DROP COLUMN abort_failure;
DROP TRIGGER tasks_counted;
DROP TABLE batch_rates;
DROP TABLE batch_deltas;
DROP TABLE batch_counts;
