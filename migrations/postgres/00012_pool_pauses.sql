-- +goose Up
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = 0;

-- Of a pool that is paused: by whom, since when and why.
ALTER TABLE pools
    ADD COLUMN paused_by text NOT NULL DEFAULT '',
    ADD COLUMN paused_at timestamptz,
    ADD COLUMN pause_reason text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE pools DROP COLUMN pause_reason, DROP COLUMN paused_at, DROP COLUMN paused_by;
