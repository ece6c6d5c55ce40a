-- +goose Up
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = 0;

-- A deleted pool stays: its ended batches name it, and one of the same name
-- goes on with higher versions, which Redis takes for newer.
ALTER TABLE pools ADD COLUMN deleted_at timestamptz;

-- +goose Down
ALTER TABLE pools DROP COLUMN deleted_at;
