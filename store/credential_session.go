package store

import (
	"context"
	"time"
)

// OpenSession keeps a session of the dashboard by the SHA-256 of its secret,
// for the operator token of that hash, and forgets those that have ended.
func (s credentials) OpenSession(ctx context.Context, secret, token []byte, lasts time.Duration) error {
	return s.write(ctx, func(tx session) error {
		if _, err := tx.exec(ctx, `DELETE FROM web_sessions WHERE expires_at <= {now}`); err != nil {
			return err
		}
		_, err := tx.exec(ctx, `INSERT INTO web_sessions (hash, token_hash, expires_at) VALUES ($1, $2, {now} + $3 * {ms})`,
			secret, token, lasts.Milliseconds())
		return err
	})
}

// Session returns the hash of the operator token that a session is for;
// ErrNotFound when it has ended. The token itself may have been revoked.
func (s credentials) Session(ctx context.Context, secret []byte) (token []byte, err error) {
	return one(ctx, s.read(), only[[]byte], `SELECT token_hash FROM web_sessions WHERE hash = $1 AND expires_at > {now}`, secret)
}

// CloseSession ends a session; none is fine.
func (s credentials) CloseSession(ctx context.Context, secret []byte) error {
	return s.write(ctx, func(tx session) error {
		_, err := tx.exec(ctx, `DELETE FROM web_sessions WHERE hash = $1`, secret)
		return err
	})
}
