-- +goose Up
-- What changed lately is asked for several times a second.
CREATE INDEX pools_updated_at ON pools (updated_at);

-- Each time the ledger came back from a backup that lacked commits: nothing is
-- granted before the last until.
CREATE TABLE restores (
    id    INTEGER PRIMARY KEY AUTOINCREMENT,
    at    INTEGER NOT NULL,
    until INTEGER NOT NULL
);
CREATE INDEX restores_until ON restores (until);

-- +goose Down
DROP TABLE restores;
DROP INDEX pools_updated_at;
