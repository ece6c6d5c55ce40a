-- +goose Up
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = 0;

-- Who waits is counted from the batches of a pool; the few devices that are
-- blocked are left out.
CREATE INDEX batches_of_pool ON batches (pool, id);
CREATE INDEX devices_blocked ON devices (id) WHERE blocked;

-- +goose Down
DROP INDEX batches_of_pool, devices_blocked;
