-- +goose Up
-- Until when the time of free places was counted, and since when the last piece
-- of it: one row.
CREATE TABLE idle_time (
    id           smallint PRIMARY KEY CHECK (id = 1),
    taken_before timestamptz NOT NULL,
    taken_at     timestamptz NOT NULL
);
INSERT INTO idle_time (id, taken_before, taken_at) VALUES (1, now(), now());

-- +goose Down
DROP TABLE idle_time;
