-- +goose Up
-- Changes of devices that their accounts at the MQTT broker have yet to follow.
CREATE TABLE account_changes (
    device     text COLLATE "C" PRIMARY KEY,
    wanted     text NOT NULL CHECK (wanted IN ('enabled', 'disabled', 'deleted')),
    changed_at timestamptz NOT NULL
);

-- Ids of devices that were deleted and not registered again: their sessions at
-- a broker may still be open, and must not bring them back.
CREATE TABLE deleted_devices (
    id         text COLLATE "C" PRIMARY KEY,
    deleted_at timestamptz NOT NULL
);

-- +goose Down
DROP TABLE account_changes, deleted_devices;
