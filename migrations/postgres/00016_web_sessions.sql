-- +goose Up
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = 0;

-- Who is signed in to the dashboard: the hash of the cookie, and that of the operator token it was opened with.
CREATE TABLE web_sessions (
    hash       bytea PRIMARY KEY,
    token_hash bytea NOT NULL,
    expires_at timestamptz NOT NULL
);

-- +goose Down
DROP TABLE web_sessions;
