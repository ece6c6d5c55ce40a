-- +goose Up
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = 0;

-- Policies that devices share wherever they run something. limits is as in pools.
CREATE TABLE profiles (
    name       text COLLATE "C" PRIMARY KEY,
    limits     json,
    version    bigint NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);
ALTER TABLE devices ADD COLUMN profile text COLLATE "C" REFERENCES profiles;
CREATE INDEX devices_of_profile ON devices (profile, id) WHERE profile IS NOT NULL;

-- +goose Down
DROP INDEX devices_of_profile;
ALTER TABLE devices DROP COLUMN profile;
DROP TABLE profiles;
