-- +goose Up
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = 0;

-- How a device can be told of a place: 0 it polls, 1 pushed to, 2 its requests
-- wait. The index holds no time: a device that is seen costs no write to it.
ALTER TABLE devices ADD COLUMN reach smallint NOT NULL DEFAULT 0;
CREATE INDEX devices_reachable ON devices (id) WHERE reach <> 0;

-- Who may be offered a place next: the waiting tasks of a batch, in its order.
CREATE INDEX tasks_in_line ON tasks (pool, batch, priority DESC, id) WHERE state = 'pending';

-- +goose Down
DROP INDEX tasks_in_line, devices_reachable;
ALTER TABLE devices DROP COLUMN reach;
