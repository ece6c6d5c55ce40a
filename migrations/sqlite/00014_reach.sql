-- +goose Up
-- How a device can be told of a place: 0 it polls, 1 pushed to, 2 its requests
-- wait.
ALTER TABLE devices ADD COLUMN reach INTEGER NOT NULL DEFAULT 0;
CREATE INDEX devices_reachable ON devices (id) WHERE reach <> 0;

-- Who may be offered a place next: the waiting tasks of a batch, in its order.
CREATE INDEX tasks_in_line ON tasks (pool, batch, priority DESC, id) WHERE state = 'pending';

-- +goose Down
DROP INDEX tasks_in_line;
DROP INDEX devices_reachable;
ALTER TABLE devices DROP COLUMN reach;
