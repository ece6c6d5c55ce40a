-- +goose Up
-- Postgres has an index of tags here; an embedded fleet is small.
SELECT 1;

-- +goose Down
SELECT 1;
