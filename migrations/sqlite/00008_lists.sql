-- +goose Up
-- Lists of tasks are filtered by these, in the order of the ids. Waiting tasks
-- have the indexes of their pool and device.
CREATE INDEX tasks_of_device ON tasks (device, id);
CREATE INDEX tasks_in_batch ON tasks (batch, id);
CREATE INDEX tasks_in_pool ON tasks (pool, id);
CREATE INDEX tasks_ended ON tasks (state, id) WHERE state <> 'pending';
CREATE INDEX tasks_of_error ON tasks (substr(error, 1, 200), id) WHERE error <> '';
CREATE INDEX batches_of_kind ON batches (kind, id);

-- +goose Down
DROP INDEX batches_of_kind;
DROP INDEX tasks_of_error;
DROP INDEX tasks_ended;
DROP INDEX tasks_in_pool;
DROP INDEX tasks_in_batch;
DROP INDEX tasks_of_device;
