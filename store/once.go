package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// answersKept is the time within which a repeated request gets the stored answer.
const answersKept = 24 * time.Hour

// Once identifies a request that must take effect once, even if it is sent again. The effect and the answer of the request are stored in
// one transaction. A refused request stores nothing and may be sent again.
type Once struct {
	Owner int64  // id of the operator token of the request; 0 means the token of the configuration
	Key   string // chosen by the client
	// Digest returns a hash of the whole request. The store calls Digest last, after the operation has read its part of the body.
	Digest func() ([]byte, error)

	Replayed bool // set by the store: true if the request was done before and the result is the stored answer
}

type onceKey struct{}

// WithOnce returns a context with which a method that creates something, such as CreateBatch, takes effect once.
func WithOnce(ctx context.Context, once *Once) context.Context {
	return context.WithValue(ctx, onceKey{}, once)
}

// OnceFrom returns the Once that WithOnce added to ctx, or nil.
func OnceFrom(ctx context.Context) *Once {
	once, _ := ctx.Value(onceKey{}).(*Once)
	return once
}

// beginOnce returns ErrInProgress if this process already works on a request with the same key. (On SQLite, the second request would wait
// for the only connection.) Otherwise this process counts as working on the request until endOnce is called. endOnce is never nil.
func (s *connection) beginOnce(once *Once) (endOnce func(), err error) {
	if once == nil {
		return func() {}, nil
	}
	name := fmt.Sprint(once.Owner, " ", once.Key)
	if _, taken := s.running.LoadOrStore(name, nil); taken {
		return func() {}, ErrInProgress
	}
	return func() { s.running.Delete(name) }, nil
}

// runOnce runs effect and stores result, which must have no secrets, as the answer. If the request of ctx was answered before, it sets
// result to that answer instead. Errors: ErrInProgress, ErrKeyReused.
func (s session) runOnce(ctx context.Context, result any, effect func() error) error {
	replayed, err := s.lookUpAnswer(ctx, result)
	if err != nil || replayed {
		return err
	}
	if err := effect(); err != nil {
		return err
	}
	once := OnceFrom(ctx)
	if once == nil {
		return nil
	}
	return s.storeAnswer(ctx, once, result)
}

// lookUpAnswer reads the stored answer to the Once in ctx into result, if there is one. It locks the key until the transaction ends.
func (s session) lookUpAnswer(ctx context.Context, result any) (found bool, err error) {
	once := OnceFrom(ctx)
	if once == nil {
		return false, nil
	}
	once.Replayed = false // an earlier run of this transaction may have set it
	if s.tryLockKey != "" {
		isLocked, err := queryOne(ctx, s, singleColumn[bool], s.tryLockKey, once.Owner, once.Key)
		if err != nil {
			return false, fmt.Errorf("locking an idempotency key: %w", err)
		}
		if !isLocked {
			return false, ErrInProgress
		}
	}
	return s.readAnswer(ctx, once, result)
}

// readAnswer reads the stored answer into result, and returns false if no answer is stored.
func (s session) readAnswer(ctx context.Context, once *Once, result any) (found bool, err error) {
	var request []byte
	var answer json.RawMessage
	err = s.scanRow(ctx, []any{&request, &answer}, `
		SELECT request, answer FROM answers WHERE owner = $1 AND key = $2 AND answered_at > {now} - $3 * {ms}`, once.Owner, once.Key, answersKept.Milliseconds())
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("finding a stored response: %w", err)
	}
	digest, err := once.Digest()
	if err != nil {
		return false, err
	}
	if !bytes.Equal(request, digest) {
		return false, ErrKeyReused
	}
	once.Replayed = true
	return true, json.Unmarshal(answer, result)
}

func (s session) storeAnswer(ctx context.Context, once *Once, result any) error {
	digest, err := once.Digest()
	if err != nil {
		return err
	}
	answer, err := json.Marshal(result)
	if err != nil {
		return fmt.Errorf("storing a response: %w", err)
	}
	// An existing answer is older than answersKept, so it can be replaced.
	_, err = s.exec(ctx, `
		INSERT INTO answers (owner, key, request, answer, answered_at) VALUES ($1, $2, $3, $4::json, {now})
		ON CONFLICT (owner, key) DO UPDATE SET request = excluded.request, answer = excluded.answer, answered_at = excluded.answered_at`,
		once.Owner, once.Key, digest, string(answer))
	return err
}
