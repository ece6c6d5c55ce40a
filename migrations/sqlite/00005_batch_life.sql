-- +goose Up
-- cancelling: cancelled, and not yet seen to be without open tasks.
ALTER TABLE batches ADD COLUMN paused_by TEXT NOT NULL DEFAULT '';
ALTER TABLE batches ADD COLUMN paused_at INTEGER;
ALTER TABLE batches ADD COLUMN pause_reason TEXT NOT NULL DEFAULT '';
ALTER TABLE batches ADD COLUMN cancelling INTEGER NOT NULL DEFAULT false;
CREATE INDEX batches_cancelling ON batches (id) WHERE cancelling;

-- false: the task has the priority of its batch. Tasks that are there keep what
-- they have.
ALTER TABLE tasks ADD COLUMN own_priority INTEGER NOT NULL DEFAULT true;

-- +goose Down
ALTER TABLE tasks DROP COLUMN own_priority;
DROP INDEX batches_cancelling;
ALTER TABLE batches DROP COLUMN cancelling;
ALTER TABLE batches DROP COLUMN pause_reason;
ALTER TABLE batches DROP COLUMN paused_at;
ALTER TABLE batches DROP COLUMN paused_by;
