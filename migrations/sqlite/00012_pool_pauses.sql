-- +goose Up
-- Of a pool that is paused: by whom, since when and why.
ALTER TABLE pools ADD COLUMN paused_by TEXT NOT NULL DEFAULT '';
ALTER TABLE pools ADD COLUMN paused_at INTEGER;
ALTER TABLE pools ADD COLUMN pause_reason TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE pools DROP COLUMN pause_reason;
ALTER TABLE pools DROP COLUMN paused_at;
ALTER TABLE pools DROP COLUMN paused_by;
