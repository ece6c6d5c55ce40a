-- +goose Up
-- Who is signed in to the dashboard: the hash of the cookie, and that of the operator token it was opened with.
CREATE TABLE web_sessions (
    hash       BLOB PRIMARY KEY,
    token_hash BLOB NOT NULL,
    expires_at INTEGER NOT NULL
);

-- +goose Down
DROP TABLE web_sessions;
