-- +goose Up
-- What each replica says of itself every few seconds. A row that grows old is a replica that ended.
CREATE TABLE replicas (
    id         text PRIMARY KEY,
    host       text NOT NULL,
    address    text NOT NULL,
    version    text NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL,
    reaped_at  INTEGER,
    state      text NOT NULL,
    tallies    text NOT NULL
);

-- +goose Down
DROP TABLE replicas;
