-- +goose Up
-- Until when the time of free places was counted, and since when the last piece
-- of it: one row.
CREATE TABLE idle_time (
    id           smallint PRIMARY KEY CHECK (id = 1),
    taken_before INTEGER NOT NULL,
    taken_at     INTEGER NOT NULL
);
INSERT INTO idle_time (id, taken_before, taken_at) VALUES (1, (CAST(round(unixepoch('subsec') * 1000) AS INTEGER)), (CAST(round(unixepoch('subsec') * 1000) AS INTEGER)));

-- +goose Down
DROP TABLE idle_time;
