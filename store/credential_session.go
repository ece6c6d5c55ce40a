package store

import (
	"context"
	"time"
)

// OpenSession stores a session of the dashboard, and deletes expired sessions. secretHash is the SHA-256 of the secret of the session.
// tokenHash is the SHA-256 of the secret of the operator token that the session uses. lifetime is the duration of the session. OpenSession
// records that actor, the owner of the token, signed in from the network address in the parameter from.
func (s credentials) OpenSession(ctx context.Context, actor, from string, secretHash, tokenHash []byte, lifetime time.Duration) error {
	return s.write(ctx, func(tx session) error {
		if _, err := tx.exec(ctx, `DELETE FROM web_sessions WHERE expires_at <= {now}`); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, `INSERT INTO web_sessions (hash, token_hash, expires_at) VALUES ($1, $2, {now} + $3 * {ms})`,
			secretHash, tokenHash, lifetime.Milliseconds()); err != nil {
			return err
		}
		return tx.recordEvent(ctx, Event{Kind: "access.signed_in", Actor: actor, Detail: "from=" + from})
	})
}

// Session returns the hash of the operator token that a session uses. It returns ErrNotFound if there is no such session or it has expired.
// secretHash is the SHA-256 of the secret of the session. The token may have been revoked after the session was opened.
func (s credentials) Session(ctx context.Context, secretHash []byte) (tokenHash []byte, err error) {
	return queryOne(ctx, s.readSession(), singleColumn[[]byte], `SELECT token_hash FROM web_sessions WHERE hash = $1 AND expires_at > {now}`, secretHash)
}

// CloseSession deletes the session whose secret has the SHA-256 secretHash, and records that actor signed out from the network address in
// the parameter from. If there is no such session, it records nothing and returns no error.
func (s credentials) CloseSession(ctx context.Context, actor, from string, secretHash []byte) error {
	return s.write(ctx, func(tx session) error {
		if deleted, err := tx.exec(ctx, `DELETE FROM web_sessions WHERE hash = $1`, secretHash); err != nil || deleted == 0 {
			return err
		}
		return tx.recordEvent(ctx, Event{Kind: "access.signed_out", Actor: actor, Detail: "from=" + from})
	})
}
