-- +goose Up
-- The log is read by each of these, in the order of the ids.
CREATE INDEX events_of_kind ON events (kind, id);
CREATE INDEX events_of_actor ON events (actor, id);
CREATE INDEX events_of_pool ON events (pool, id) WHERE pool <> '';
CREATE INDEX events_of_batch ON events (batch, id) WHERE batch <> 0;
CREATE INDEX events_of_task ON events (task, id) WHERE task <> 0;
CREATE INDEX events_of_device ON events (device, id) WHERE device <> '';

-- What is old goes.
CREATE INDEX late_results_received ON late_results (received_at);

-- +goose Down
DROP INDEX late_results_received;
DROP INDEX events_of_device;
DROP INDEX events_of_task;
DROP INDEX events_of_batch;
DROP INDEX events_of_pool;
DROP INDEX events_of_actor;
DROP INDEX events_of_kind;
