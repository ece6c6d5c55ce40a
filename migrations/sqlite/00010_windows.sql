-- +goose Up
-- opens_at, closes_at: the opening that lasts, or the next; null: always open.
-- They are kept so that whether something may start is a comparison. windows_due:
-- when they are to be computed anew.
ALTER TABLE batches ADD COLUMN windows TEXT;
ALTER TABLE batches ADD COLUMN finish_inside INTEGER NOT NULL DEFAULT true;
ALTER TABLE batches ADD COLUMN opens_at INTEGER;
ALTER TABLE batches ADD COLUMN closes_at INTEGER;
ALTER TABLE batches ADD COLUMN windows_due INTEGER;
CREATE INDEX batches_windows_due ON batches (windows_due) WHERE windows_due IS NOT NULL;
ALTER TABLE pools ADD COLUMN windows TEXT;
ALTER TABLE pools ADD COLUMN opens_at INTEGER;
ALTER TABLE pools ADD COLUMN closes_at INTEGER;
ALTER TABLE pools ADD COLUMN windows_due INTEGER;
CREATE INDEX pools_windows_due ON pools (windows_due) WHERE windows_due IS NOT NULL;

-- +goose Down
DROP INDEX pools_windows_due;
DROP INDEX batches_windows_due;
ALTER TABLE pools DROP COLUMN windows_due;
ALTER TABLE pools DROP COLUMN closes_at;
ALTER TABLE pools DROP COLUMN opens_at;
ALTER TABLE pools DROP COLUMN windows;
ALTER TABLE batches DROP COLUMN windows_due;
ALTER TABLE batches DROP COLUMN closes_at;
ALTER TABLE batches DROP COLUMN opens_at;
ALTER TABLE batches DROP COLUMN finish_inside;
ALTER TABLE batches DROP COLUMN windows;
