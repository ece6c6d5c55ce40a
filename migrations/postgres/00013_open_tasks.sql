-- +goose Up
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = 0;

-- Lists of waiting tasks, in the order of their ids: by the primary key all that
-- ended before would be read.
CREATE INDEX tasks_open ON tasks (id) WHERE state = 'pending';

-- +goose Down
DROP INDEX tasks_open;
