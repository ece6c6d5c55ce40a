-- +goose Up
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = 0;

-- Policies, as a JSON array; null: none.
ALTER TABLE pools ADD COLUMN limits json;
ALTER TABLE batches ADD COLUMN limits json;
CREATE INDEX batches_limited ON batches (pool) WHERE limits IS NOT NULL;

-- What started in a pool, newest first: what policies would have counted.
CREATE INDEX attempts_of_pool ON attempts (pool, token);

-- +goose Down
DROP INDEX attempts_of_pool, batches_limited;
ALTER TABLE batches DROP COLUMN limits;
ALTER TABLE pools DROP COLUMN limits;
