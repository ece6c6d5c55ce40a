-- +goose Up
-- What requests with an idempotency key were answered, written with their
-- effect. The owner is the operator token, 0 the one of the configuration.
CREATE TABLE answers (
    owner       bigint NOT NULL,
    key         text COLLATE "C" NOT NULL,
    request     bytea NOT NULL,
    answer      json NOT NULL,
    answered_at timestamptz NOT NULL,
    PRIMARY KEY (owner, key)
);
CREATE INDEX answers_answered_at ON answers (answered_at);

-- +goose Down
DROP TABLE answers;
