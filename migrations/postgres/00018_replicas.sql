-- +goose Up
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = 0;

-- What each replica says of itself every few seconds. A row that grows old is a replica that ended.
CREATE TABLE replicas (
    id         text PRIMARY KEY,
    host       text NOT NULL,
    address    text NOT NULL,
    version    text NOT NULL,
    started_at timestamptz NOT NULL,
    seen_at    timestamptz NOT NULL,
    reaped_at  timestamptz,
    state      text NOT NULL,
    tallies    text NOT NULL
);

-- +goose Down
DROP TABLE replicas;
