package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
)

const tokenColumns = `id, name, device, role, pools, limit_sets, created_at, expires_at`

// validToken is the condition on a token k that it is a credential now.
const validToken = `k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > {now})`

func tokenDest(t *Token) []any {
	return []any{&t.ID, &t.Name, &t.Device, &t.Role, fromJSON(&t.Pools), fromJSON(&t.LimitSets), instant{&t.CreatedAt}, maybe{&t.ExpiresAt}}
}

// TokenByHash returns the token whose secret has this SHA-256; ErrNotFound
// when there is none, or it has expired or was revoked.
func (s credentials) TokenByHash(ctx context.Context, hash []byte) (Token, error) {
	return one(ctx, s.read(), tokenDest, `
		SELECT `+tokenColumns+` FROM tokens k WHERE hash = $1 AND `+validToken, hash)
}

// ownActors act in the log without a token.
func ownActors() []string {
	return []string{aborter, "bootstrap", "command line", "dashboard", "dispatcher", "nobody", "reaper", "serve --after-restore"}
}

// CreateToken keeps an operator's credential by the SHA-256 of its secret. ErrExists
// when the same secret is there already, or somebody acts by that name: a token
// that is valid, a device or the dispatcher itself. With WithOnce it takes effect once.
func (s credentials) CreateToken(ctx context.Context, actor string, t Token, hash []byte) (Token, error) {
	leave, err := s.enter(OnceOf(ctx))
	defer leave()
	if err != nil {
		return Token{}, err
	}
	var created Token
	err = s.write(ctx, func(tx session) error {
		return tx.once(ctx, &created, func() (err error) {
			if err := tx.credentials().freeName(ctx, t.Name); err != nil {
				return err
			}
			if created, err = tx.credentials().addToken(ctx, t, hash); err != nil {
				return err
			}
			return tx.record(ctx, Event{Kind: "token.created", Actor: actor, Device: t.Device, Detail: created.detail()})
		})
	})
	return created, err
}

// detail is what the log says of an operator's token. Its name is last: it is any text.
func (t Token) detail() string {
	parts := []string{fmt.Sprintf("id=%d role=%s", t.ID, t.Role)}
	if len(t.Pools) > 0 {
		parts = append(parts, "pools="+strings.Join(t.Pools, ","))
	}
	if len(t.LimitSets) > 0 {
		parts = append(parts, "limit_sets="+strings.Join(t.LimitSets, ","))
	}
	return strings.Join(append(parts, "name="+t.Name), " ")
}

// nullList is the parameter for a list that is kept as JSON.
func nullList(list []string) any {
	if len(list) == 0 {
		return nil
	}
	text, _ := json.Marshal(list) // text cannot fail
	return string(text)
}

// freeName takes a name from the token that had it until it expired. The unique
// key of names refuses those of tokens that are valid.
func (s credentialsIn) freeName(ctx context.Context, name string) error {
	own := func(actor string) bool { return strings.EqualFold(actor, strings.TrimSpace(name)) }
	device, err := one(ctx, s.session, only[bool], `SELECT EXISTS (SELECT 1 FROM devices WHERE id = $1)`, name)
	if err != nil {
		return err
	}
	if device || slices.ContainsFunc(ownActors(), own) {
		return fmt.Errorf("somebody called %s: %w", name, ErrExists)
	}
	_, err = s.exec(ctx, `UPDATE tokens SET revoked_at = expires_at WHERE name = $1 AND device = '' AND revoked_at IS NULL AND expires_at <= {now}`, name)
	return err
}

// OperatorTokens returns up to limit operator tokens that were not revoked, by
// id or the newest first, those behind the one named (0: from the first on).
func (s credentials) OperatorTokens(ctx context.Context, behind int64, newest bool, limit int) ([]Token, error) {
	bound, order := `id > $1`, `id`
	if newest {
		bound, order, behind = `id < $1`, `id DESC`, cmp.Or(behind, math.MaxInt64)
	}
	return collect(ctx, s.read(), func(t *Token) []any { return append(tokenDest(t), maybe{&t.LastUsed}) }, `
		SELECT `+tokenColumns+`, (SELECT u.used_at FROM token_uses u WHERE u.token = tokens.id) FROM tokens
		WHERE `+bound+` AND device = '' AND revoked_at IS NULL ORDER BY `+order+` LIMIT $2`, behind, clampLimit(limit))
}

// TouchTokens notes that operator tokens were used now. Those that are gone are left out.
func (s credentials) TouchTokens(ctx context.Context, ids []int64) error {
	return s.write(ctx, func(tx session) error {
		for _, id := range ids {
			if _, err := tx.exec(ctx, `
				INSERT INTO token_uses (token, used_at) SELECT k.id, {now} FROM tokens k WHERE k.id = $1
				ON CONFLICT (token) DO UPDATE SET used_at = excluded.used_at`, id); err != nil {
				return err
			}
		}
		return nil
	})
}

// RevokeToken ends an operator token at once for whoever asks the ledger.
// ErrNotFound when there is none, or it was revoked before.
func (s credentials) RevokeToken(ctx context.Context, actor string, id int64) (Token, error) {
	var t Token
	err := s.write(ctx, func(tx session) (err error) {
		t, err = one(ctx, tx, tokenDest, `
			UPDATE tokens SET revoked_at = {now} WHERE id = $1 AND device = '' AND revoked_at IS NULL RETURNING `+tokenColumns, id)
		if err != nil {
			return err
		}
		return tx.record(ctx, Event{Kind: "token.revoked", Actor: actor, Detail: t.detail()})
	})
	return t, err
}

func (s credentialsIn) addToken(ctx context.Context, t Token, hash []byte) (Token, error) {
	created, err := collect(ctx, s.session, tokenDest, `
		INSERT INTO tokens (name, device, role, hash, created_at, expires_at, pools, limit_sets)
		VALUES ($1, $2, $3, $4, {now}, {epoch} + $5 * {ms}, $6{json}, $7{json}) ON CONFLICT DO NOTHING RETURNING `+tokenColumns,
		t.Name, t.Device, t.Role, hash, nullMillis(t.ExpiresAt), nullList(t.Pools), nullList(t.LimitSets))
	if err != nil {
		return Token{}, err
	}
	if len(created) == 0 {
		return Token{}, fmt.Errorf("token %s: %w", t.Name, ErrExists)
	}
	return created[0], nil
}

// Covers reports whether one of the patterns of a caller's token matches the name of a pool or limit set.
func Covers(patterns []string, name string) bool {
	for _, p := range patterns {
		if is, err := path.Match(p, name); err == nil && is && name != "" {
			return true
		}
	}
	return false
}
