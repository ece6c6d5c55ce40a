-- +goose Up
-- A deleted pool stays: its ended batches name it, and one of the same name
-- goes on with higher versions, which Redis takes for newer.
ALTER TABLE pools ADD COLUMN deleted_at INTEGER;

-- +goose Down
ALTER TABLE pools DROP COLUMN deleted_at;
