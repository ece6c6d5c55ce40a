package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// answersKept is how long a request that is sent again gets its first answer.
const answersKept = 24 * time.Hour

// Once names a request that may be sent again: it takes effect once. Its answer
// is kept in the transaction of its effect, so there is never one without the
// other; what is refused leaves nothing behind, and may be tried again.
type Once struct {
	Owner int64  // the operator token's id; 0 = the one of the configuration
	Key   string // chosen by the client
	// Digest is over all of the request. It is asked for last, when the effect
	// has read what it needs of the body.
	Digest func() ([]byte, error)

	Replayed bool // set: nothing was done, this is the first answer
}

type onceKey struct{}

// WithOnce lets the creating method that ctx is given to take effect once. It
// goes with the request, so that every such method takes it in the same way.
func WithOnce(ctx context.Context, once *Once) context.Context {
	return context.WithValue(ctx, onceKey{}, once)
}

// OnceOf is what WithOnce was given; nil: nothing.
func OnceOf(ctx context.Context) *Once {
	once, _ := ctx.Value(onceKey{}).(*Once)
	return once
}

// enter keeps a second request with the same key out while one is under way in
// this process: on SQLite it would only wait for the connection. leave is
// never nil.
func (s *connection) enter(once *Once) (leave func(), err error) {
	if once == nil {
		return func() {}, nil
	}
	name := fmt.Sprint(once.Owner, " ", once.Key)
	if _, taken := s.running.LoadOrStore(name, nil); taken {
		return func() {}, ErrInProgress
	}
	return func() { s.running.Delete(name) }, nil
}

// once runs effect, unless ctx names a request that was answered before: then
// result is what it was. Secrets must not be in result. ErrInProgress,
// ErrKeyReused.
func (s session) once(ctx context.Context, result any, effect func() error) error {
	replayed, err := s.answered(ctx, result)
	if err != nil || replayed {
		return err
	}
	if err := effect(); err != nil {
		return err
	}
	once := OnceOf(ctx)
	if once == nil {
		return nil
	}
	return s.keepAnswer(ctx, once, result)
}

// answered: the request that ctx names was answered before, with result. Until the
// transaction ends no other one with its key passes here.
func (s session) answered(ctx context.Context, result any) (bool, error) {
	once := OnceOf(ctx)
	if once == nil {
		return false, nil
	}
	once.Replayed = false // a transaction may run again
	if s.lockKey != "" {
		free, err := one(ctx, s, only[bool], s.lockKey, once.Owner, once.Key)
		if err != nil {
			return false, fmt.Errorf("locking an idempotency key: %w", err)
		}
		if !free {
			return false, ErrInProgress
		}
	}
	return s.replay(ctx, once, result)
}

func (s session) replay(ctx context.Context, once *Once, result any) (bool, error) {
	var request []byte
	var answer json.RawMessage
	err := s.rowOf(ctx, `
		SELECT request, answer FROM answers WHERE owner = $1 AND key = $2 AND answered_at > {now} - $3 * {ms}`,
		[]any{once.Owner, once.Key, answersKept.Milliseconds()}, &request, document{&answer})
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for an answer: %w", err)
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

func (s session) keepAnswer(ctx context.Context, once *Once, result any) error {
	digest, err := once.Digest()
	if err != nil {
		return err
	}
	answer, err := json.Marshal(result)
	if err != nil {
		return fmt.Errorf("an answer: %w", err)
	}
	// An answer that is there is older than answersKept.
	_, err = s.exec(ctx, `
		INSERT INTO answers (owner, key, request, answer, answered_at) VALUES ($1, $2, $3, $4{json}, {now})
		ON CONFLICT (owner, key) DO UPDATE SET request = excluded.request, answer = excluded.answer, answered_at = excluded.answered_at`,
		once.Owner, once.Key, digest, string(answer))
	return err
}
