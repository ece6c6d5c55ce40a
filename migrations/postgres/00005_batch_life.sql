-- +goose Up
-- A migration may take longer than any request is allowed to.
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = 0;

-- cancelling: cancelled, and not yet seen to be without open tasks.
ALTER TABLE batches
    ADD COLUMN paused_by text NOT NULL DEFAULT '',
    ADD COLUMN paused_at timestamptz,
    ADD COLUMN pause_reason text NOT NULL DEFAULT '',
    ADD COLUMN cancelling boolean NOT NULL DEFAULT false;
CREATE INDEX batches_cancelling ON batches (id) WHERE cancelling;

-- false: the task has the priority of its batch. Tasks that are there keep what
-- they have.
ALTER TABLE tasks ADD COLUMN own_priority boolean NOT NULL DEFAULT true;

-- +goose Down
ALTER TABLE tasks DROP COLUMN own_priority;
DROP INDEX batches_cancelling;
ALTER TABLE batches DROP COLUMN cancelling, DROP COLUMN pause_reason, DROP COLUMN paused_at, DROP COLUMN paused_by;
