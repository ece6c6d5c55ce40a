-- +goose Up
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = 0;

-- opens_at, closes_at: the opening that lasts, or the next; null: always open.
-- They are kept so that whether something may start is a comparison. windows_due:
-- when they are to be computed anew.
ALTER TABLE batches
    ADD COLUMN windows json,
    ADD COLUMN finish_inside boolean NOT NULL DEFAULT true,
    ADD COLUMN opens_at timestamptz,
    ADD COLUMN closes_at timestamptz,
    ADD COLUMN windows_due timestamptz;
CREATE INDEX batches_windows_due ON batches (windows_due) WHERE windows_due IS NOT NULL;
ALTER TABLE pools
    ADD COLUMN windows json,
    ADD COLUMN opens_at timestamptz,
    ADD COLUMN closes_at timestamptz,
    ADD COLUMN windows_due timestamptz;
CREATE INDEX pools_windows_due ON pools (windows_due) WHERE windows_due IS NOT NULL;

-- +goose Down
DROP INDEX pools_windows_due, batches_windows_due;
ALTER TABLE pools DROP COLUMN windows_due, DROP COLUMN closes_at, DROP COLUMN opens_at, DROP COLUMN windows;
ALTER TABLE batches DROP COLUMN windows_due, DROP COLUMN closes_at, DROP COLUMN opens_at, DROP COLUMN finish_inside, DROP COLUMN windows;
