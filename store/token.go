package store

import (
	"context"
	"fmt"
)

const tokenColumns = `id, name, device, role, created_at, expires_at`

func tokenDest(t *Token) []any {
	return []any{&t.ID, &t.Name, &t.Device, &t.Role, instant{&t.CreatedAt}, maybe{&t.ExpiresAt}}
}

// TokenByHash returns the token whose secret has this SHA-256; ErrNotFound
// when there is none, or it has expired or was revoked.
func (s *Store) TokenByHash(ctx context.Context, hash []byte) (Token, error) {
	return one(ctx, s.read(), tokenDest, `
		SELECT `+tokenColumns+` FROM tokens
		WHERE hash = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > {now})`, hash)
}

// CreateToken keeps a credential by the SHA-256 of its secret; ErrExists when
// the same secret is there already.
func (s *Store) CreateToken(ctx context.Context, actor string, t Token, hash []byte) (Token, error) {
	var created Token
	err := s.write(ctx, func(tx session) (err error) {
		if created, err = tx.addToken(ctx, t, hash); err != nil {
			return err
		}
		return tx.record(ctx, Event{Kind: "token.created", Actor: actor, Device: t.Device, Detail: t.Name})
	})
	return created, err
}

func (s session) addToken(ctx context.Context, t Token, hash []byte) (Token, error) {
	created, err := collect(ctx, s, tokenDest, `
		INSERT INTO tokens (name, device, role, hash, created_at, expires_at)
		VALUES ($1, $2, $3, $4, {now}, {epoch} + $5 * {ms}) ON CONFLICT DO NOTHING RETURNING `+tokenColumns,
		t.Name, t.Device, t.Role, hash, nullMillis(t.ExpiresAt))
	if err != nil {
		return Token{}, err
	}
	if len(created) == 0 {
		return Token{}, fmt.Errorf("token: %w", ErrExists)
	}
	return created[0], nil
}
