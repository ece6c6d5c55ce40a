-- +goose Up
-- A migration may take longer than any request is allowed to.
SET LOCAL statement_timeout = 0;
SET LOCAL lock_timeout = 0;

-- The log is read by each of these, in the order of the ids.
CREATE INDEX events_of_kind ON events (kind, id);
CREATE INDEX events_of_actor ON events (actor, id);
CREATE INDEX events_of_pool ON events (pool, id) WHERE pool <> '';
CREATE INDEX events_of_batch ON events (batch, id) WHERE batch <> 0;
CREATE INDEX events_of_task ON events (task, id) WHERE task <> 0;
CREATE INDEX events_of_device ON events (device, id) WHERE device <> '';

-- What is old goes.
CREATE INDEX late_results_received ON late_results (received_at);

-- Whoever gives an event its id has a transaction id by then, and thus is seen
-- by whoever asks which transactions are under way: the id may wait for no
-- other reason than that.
-- +goose StatementBegin
CREATE FUNCTION events_begin() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_current_xact_id();
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER events_begin BEFORE INSERT ON events FOR EACH STATEMENT EXECUTE FUNCTION events_begin();

-- +goose Down
DROP TRIGGER events_begin ON events;
DROP FUNCTION events_begin;
DROP INDEX late_results_received, events_of_device, events_of_task, events_of_batch, events_of_pool, events_of_actor, events_of_kind;
