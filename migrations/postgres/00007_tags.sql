-- +goose Up
-- Batches select devices by their tags.
CREATE INDEX devices_tags ON devices USING gin (tags jsonb_path_ops);

-- +goose Down
DROP INDEX devices_tags;
