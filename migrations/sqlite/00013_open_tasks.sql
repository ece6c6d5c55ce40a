-- +goose Up
-- Lists of waiting tasks, in the order of their ids.
CREATE INDEX tasks_open ON tasks (id) WHERE state = 'pending';

-- +goose Down
DROP INDEX tasks_open;
