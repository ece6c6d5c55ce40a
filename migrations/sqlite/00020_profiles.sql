-- +goose Up
-- Policies that devices share wherever they run something. limits is as in pools.
CREATE TABLE profiles (
    name       TEXT PRIMARY KEY,
    limits     TEXT,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);
ALTER TABLE devices ADD COLUMN profile TEXT REFERENCES profiles;
CREATE INDEX devices_of_profile ON devices (profile, id) WHERE profile IS NOT NULL;

-- +goose Down
DROP INDEX devices_of_profile;
ALTER TABLE devices DROP COLUMN profile;
DROP TABLE profiles;
