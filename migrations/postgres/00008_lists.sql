-- +goose Up
-- A migration may take longer than any request is allowed to.
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = 0;

-- Lists of tasks are filtered by these, in the order of the ids. Waiting tasks
-- have the indexes of their pool and device.
CREATE INDEX tasks_of_device ON tasks (device, id);
CREATE INDEX tasks_in_batch ON tasks (batch, id);
CREATE INDEX tasks_in_pool ON tasks (pool, id);
CREATE INDEX tasks_ended ON tasks (state, id) WHERE state <> 'pending';
CREATE INDEX tasks_of_error ON tasks ((substr(error, 1, 200) COLLATE "C"), id) WHERE error <> '';
CREATE INDEX batches_of_kind ON batches (kind, id);

-- +goose Down
DROP INDEX batches_of_kind, tasks_of_error, tasks_ended, tasks_in_pool, tasks_in_batch, tasks_of_device;
