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
	"time"
)

// credentials holds the tokens of devices and operators, the sessions of the dashboard, and the changes of accounts at an MQTT broker.
type credentials struct{ *connection }

// RotateDeviceToken adds a token with the SHA-256 tokenHash to the device, and setAccount gives the same secret to its account at the MQTT
// broker. The older tokens of the device expire after overlap, at the time olderUntil. If overlap is 0, they expire at once. Error:
// ErrNotFound.
func (s credentials) RotateDeviceToken(ctx context.Context, actor, id string, tokenHash []byte, overlap time.Duration, setAccount SetAccount) (olderUntil time.Time, err error) {
	err = s.write(ctx, func(tx session) (err error) {
		olderUntil, err = tx.rotateDeviceToken(ctx, id, tokenHash, overlap)
		if err != nil {
			return err
		}
		err = tx.recordEvent(ctx, Event{Kind: "device.token_added", Actor: actor, Device: id, Detail: "overlap=" + overlap.String()})
		if err != nil {
			return err
		}
		tx.pendingNews.addDevices(id)
		return tx.setBrokerAccount(ctx, id, setAccount)
	})
	return olderUntil, err
}

// rotateDeviceToken adds a token with the hash tokenHash to the device deviceID. The older tokens of the device expire after overlap, at
// the time olderUntil.
func (s session) rotateDeviceToken(ctx context.Context, deviceID string, tokenHash []byte, overlap time.Duration) (olderUntil time.Time, err error) {
	err = s.scanRow(ctx, []any{&olderUntil}, `SELECT {now} + $2 * {ms} FROM devices WHERE id = $1 FOR UPDATE`, deviceID, overlap.Milliseconds())
	if err != nil {
		return olderUntil, err
	}
	if _, err := s.exec(ctx, `DELETE FROM tokens WHERE device = $1 AND expires_at <= {now}`, deviceID); err != nil {
		return olderUntil, err
	}
	_, err = s.exec(ctx, `
		UPDATE tokens SET expires_at = {epoch} + $2 * {ms}
		WHERE device = $1 AND (expires_at IS NULL OR expires_at > {epoch} + $2 * {ms})`, deviceID, olderUntil.UnixMilli())
	if err != nil {
		return olderUntil, err
	}
	_, err = s.insertToken(ctx, Token{Device: deviceID}, tokenHash)
	return olderUntil, err
}

// enrolledTokenName is the name of a token that a device requested itself.
const enrolledTokenName = "enrolled"

// EnrollDevice gives a registered device the token that it requested, with the SHA-256 tokenHash. setAccount gives the secret to the account of
// the device at the MQTT broker. If an earlier enrolled token was never used, because the reply with it was lost, the new token replaces it.
// Errors: ErrNotFound; ErrExists if the device has used a token of its own, or if an operator gave it a token.
func (s credentials) EnrollDevice(ctx context.Context, id string, tokenHash []byte, setAccount SetAccount) error {
	return s.write(ctx, func(tx session) error {
		hasUsedOwnToken, err := queryOne(ctx, tx, singleColumn[bool], `SELECT own_token FROM devices WHERE id = $1 FOR UPDATE`, id)
		if err != nil {
			return err
		}
		hasOtherToken, err := queryOne(ctx, tx, singleColumn[bool], `SELECT EXISTS (SELECT 1 FROM tokens k WHERE k.device = $1 AND k.name <> $2)`, id, enrolledTokenName)
		if err != nil {
			return err
		}
		if hasUsedOwnToken || hasOtherToken {
			return fmt.Errorf("device %s already has a token: %w", id, ErrExists)
		}
		replaced, err := tx.exec(ctx, `DELETE FROM tokens WHERE device = $1 AND name = $2`, id, enrolledTokenName)
		if err != nil {
			return err
		}
		if _, err := tx.insertToken(ctx, Token{Device: id, Name: enrolledTokenName}, tokenHash); err != nil {
			return err
		}
		if replaced == 0 { // record only the first token: a device that enrolls again and again would fill the log
			if err := tx.recordEvent(ctx, Event{Kind: "device.enrolled", Actor: id, ActorKind: ActorDevice, Device: id}); err != nil {
				return err
			}
		}
		tx.pendingNews.addDevices(id)
		return tx.setBrokerAccount(ctx, id, setAccount)
	})
}

// MarkOwnTokens records that each device in devices has used a token of its own, not a token of its fleet.
func (s credentials) MarkOwnTokens(ctx context.Context, devices ...string) error {
	return s.write(ctx, func(tx session) error {
		// Rows are locked in one order, so that two concurrent calls cannot deadlock.
		marked, err := collect(ctx, tx, singleColumn[string], `
			UPDATE devices SET own_token = TRUE WHERE id IN (
				SELECT d.id FROM {names} JOIN devices d ON d.id = names.name WHERE d.own_token IS FALSE ORDER BY d.id FOR UPDATE OF d)
			RETURNING id`, namesToJSONArray(devices))
		tx.pendingNews.addDevices(marked...)
		tx.pendingNews.makesNoWork = true // the news only say who may act for the device, which this replica already knows
		return err
	})
}

const tokenColumns = `id, name, device, role, pools, limit_sets, created_at, expires_at`

// validToken is the SQL condition that token k is neither revoked nor expired.
const validToken = `k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > {now})`

func tokenScanDest(token *Token) (scanDest []any) {
	return []any{&token.ID, &token.Name, &token.Device, &token.Role, &token.Pools, &token.LimitSets, &token.CreatedAt, &token.ExpiresAt}
}

// TokenByHash returns the token whose secret has this SHA-256. It returns ErrNotFound for a token that has expired or was revoked.
func (s credentials) TokenByHash(ctx context.Context, secretHash []byte) (Token, error) {
	return queryOne(ctx, s.readSession(), tokenScanDest, `
		SELECT `+tokenColumns+` FROM tokens k WHERE hash = $1 AND `+validToken, secretHash)
}

// CreateToken stores token under secretHash, the SHA-256 of its secret, and returns it with its id. It returns ErrExists if the secret is
// stored already, or the name belongs to a valid token or the dispatcher. An idempotency key (WithOnce) makes it take effect once.
func (s credentials) CreateToken(ctx context.Context, actor string, token Token, secretHash []byte) (Token, error) {
	leave, err := s.beginOnce(OnceFrom(ctx))
	defer leave()
	if err != nil {
		return Token{}, err
	}
	var created Token
	err = s.write(ctx, func(tx session) error {
		return tx.runOnce(ctx, &created, func() (err error) {
			if err := tx.releaseTokenName(ctx, token.Name); err != nil {
				return err
			}
			if created, err = tx.insertToken(ctx, token, secretHash); err != nil {
				return err
			}
			return tx.recordEvent(ctx, Event{Kind: "token.created", Actor: actor, Device: token.Device, Detail: created.auditText()})
		})
	})
	return created, err
}

// auditText returns the description of an operator token for the audit log. The name comes last because it may contain any text.
func (t Token) auditText() string {
	parts := []string{fmt.Sprintf("id=%d role=%s", t.ID, t.Role)}
	if len(t.Pools) > 0 {
		parts = append(parts, "pools="+strings.Join(t.Pools, ","))
	}
	if len(t.LimitSets) > 0 {
		parts = append(parts, "limit_sets="+strings.Join(t.LimitSets, ","))
	}
	return strings.Join(append(parts, "name="+t.Name), " ")
}

// jsonListOrNull returns values as the argument for a JSON column. If values is empty, it returns NULL.
func jsonListOrNull(values []string) any {
	if len(values) == 0 {
		return nil
	}
	text, _ := json.Marshal(values) // json.Marshal cannot fail for strings
	return string(text)
}

// releaseTokenName takes the name from an expired token, so that a new token can have it. It returns ErrExists for a reserved name, because
// kindOfActor and the columns paused_by and registered_by identify an actor by its name alone. If a valid token has the name, the later
// INSERT fails.
func (s session) releaseTokenName(ctx context.Context, name string) error {
	isReserved := func(actor string) bool { return strings.EqualFold(actor, strings.TrimSpace(name)) }
	if strings.HasPrefix(strings.ToLower(name), FleetTokenPrefix) || slices.ContainsFunc(append(programActors(), SessionRegistrant, "bootstrap", "metrics", unknownActor), isReserved) {
		return fmt.Errorf("name %s is reserved: %w", name, ErrExists)
	}
	_, err := s.exec(ctx, `UPDATE tokens SET revoked_at = expires_at WHERE name = $1 AND device = '' AND revoked_at IS NULL AND expires_at <= {now}`, name)
	return err
}

// OperatorTokens returns at most limit operator tokens that were not revoked, by ascending ids, or descending if newestFirst is true. If
// afterID is not 0, the list begins after this id.
func (s credentials) OperatorTokens(ctx context.Context, afterID int64, newestFirst bool, limit int) ([]Token, error) {
	bound, order := `id > $1`, `id`
	if newestFirst {
		bound, order, afterID = `id < $1`, `id DESC`, cmp.Or(afterID, math.MaxInt64)
	}
	return collect(ctx, s.readSession(), func(t *Token) []any { return append(tokenScanDest(t), &t.LastUsed, &t.Requests) }, `
		SELECT `+tokenColumns+`, u.used_at, u.requests FROM tokens LEFT JOIN token_uses u ON u.token = tokens.id
		WHERE `+bound+` AND device = '' AND revoked_at IS NULL ORDER BY `+order+` LIMIT $2`, afterID, clampLimit(limit))
}

// TokenUse is a number of requests with an operator token.
type TokenUse struct {
	Token    int64 `json:"token"`
	Requests int64 `json:"requests"`
}

// RecordTokenUses adds uses to the request counts of operator tokens, and records that these tokens were used now.
func (s credentials) RecordTokenUses(ctx context.Context, uses []TokenUse) error {
	_, err := s.execInTx(ctx, `
		INSERT INTO token_uses (token, used_at, requests) SELECT k.id, {now}, requests FROM {uses} JOIN tokens k ON k.id = uses.token WHERE TRUE ORDER BY k.id
		ON CONFLICT (token) DO UPDATE SET used_at = excluded.used_at, requests = token_uses.requests + excluded.requests`, rowsToJSONArray(uses))
	return err
}

// RevokeToken revokes an operator token and returns it. After the commit, TokenByHash no longer returns it. Error: ErrNotFound, also if the
// token was revoked before.
func (s credentials) RevokeToken(ctx context.Context, actor string, id int64) (Token, error) {
	var t Token
	err := s.write(ctx, func(tx session) (err error) {
		t, err = queryOne(ctx, tx, tokenScanDest, `
			UPDATE tokens SET revoked_at = {now} WHERE id = $1 AND device = '' AND revoked_at IS NULL RETURNING `+tokenColumns, id)
		if err != nil {
			return err
		}
		return tx.recordEvent(ctx, Event{Kind: "token.revoked", Actor: actor, Detail: t.auditText()})
	})
	return t, err
}

// RotateToken replaces the secret of an operator token by the secret with this SHA-256, and returns the token. Error: ErrNotFound, also if
// the token was revoked.
func (s credentials) RotateToken(ctx context.Context, actor string, id int64, secretHash []byte) (token Token, err error) {
	err = s.write(ctx, func(tx session) error {
		token, err = queryOne(ctx, tx, tokenScanDest, `
			UPDATE tokens SET hash = $2 WHERE id = $1 AND device = '' AND revoked_at IS NULL RETURNING `+tokenColumns, id, secretHash)
		if err != nil {
			return err
		}
		return tx.recordEvent(ctx, Event{Kind: "token.rotated", Actor: actor, Detail: token.auditText()})
	})
	return token, err
}

func (s session) insertToken(ctx context.Context, token Token, secretHash []byte) (Token, error) {
	created, err := collect(ctx, s, tokenScanDest, `
		INSERT INTO tokens (name, device, role, hash, created_at, expires_at, pools, limit_sets)
		VALUES ($1, $2, $3, $4, {now}, {epoch} + $5 * {ms}, $6::json, $7::json) ON CONFLICT DO NOTHING RETURNING `+tokenColumns,
		token.Name, token.Device, token.Role, secretHash, millisOrNull(token.ExpiresAt), jsonListOrNull(token.Pools), jsonListOrNull(token.LimitSets))
	if err != nil {
		return Token{}, err
	}
	if len(created) == 0 {
		return Token{}, fmt.Errorf("token %s: %w", token.Name, ErrExists)
	}
	return created[0], nil
}

// Covers reports whether name, the name of a pool or limit set, matches one of the patterns of a caller's token.
func Covers(patterns []string, name string) bool {
	for _, p := range patterns {
		if is, err := path.Match(p, name); err == nil && is && name != "" {
			return true
		}
	}
	return false
}

// changesKept is the time for which changes of tokens are kept. It must be longer than maxReadGap of package credentials,
// the longest time between two reads of the changes.
const changesKept = 2 * time.Hour

// TokenChanges is the result of ChangedTokens: the tokens that were changed or deleted.
type TokenChanges struct {
	Tokens []TokenChange
	Next   int64     // the argument since of the next call; lower than since only if the ledger was replaced by another one
	Now    time.Time // time of the reading, by the database's clock
}

// TokenChange is the change of one token.
type TokenChange struct {
	Hash   []byte // SHA-256 of the secret; empty means all tokens
	Device string // the device of the token; empty for the token of an operator
}

// ChangedTokens returns the tokens that were changed or deleted after an earlier call. The parameter since is the field Next of that call's
// result. No change is missed. A change may be returned several times while an older transaction is open.
func (s credentials) ChangedTokens(ctx context.Context, since int64) (TokenChanges, error) {
	var changes TokenChanges
	read, err := collect(ctx, s.readSession(), func(c *TokenChange) []any {
		return []any{&changes.Now, &changes.Next, &c.Hash, &c.Device}
	}, `SELECT {now}, {next turn}, c.hash, coalesce(c.device, '') FROM (SELECT 1) AS once LEFT JOIN token_changes c ON c.turn >= $1`, since)
	for _, c := range read {
		if c.Hash != nil {
			changes.Tokens = append(changes.Tokens, c)
		}
	}
	return changes, err
}

// OpenSession stores a session of the dashboard, which expires after lifetime, and deletes expired sessions. secretHash and tokenHash are the
// SHA-256 of the secrets of the session and of its operator token. It records that actor signed in from the network address.
func (s credentials) OpenSession(ctx context.Context, actor, address string, secretHash, tokenHash []byte, lifetime time.Duration) error {
	return s.write(ctx, func(tx session) error {
		if _, err := tx.exec(ctx, `DELETE FROM web_sessions WHERE expires_at <= {now}`); err != nil {
			return err
		}
		if _, err := tx.exec(ctx, `INSERT INTO web_sessions (hash, token_hash, expires_at) VALUES ($1, $2, {now} + $3 * {ms})`,
			secretHash, tokenHash, lifetime.Milliseconds()); err != nil {
			return err
		}
		return tx.recordEvent(ctx, Event{Kind: "access.signed_in", Actor: actor, Detail: "from=" + address})
	})
}

// Session returns the hash of the operator token of the dashboard session whose secret has the SHA-256 secretHash, or ErrNotFound. The
// token may have been revoked since.
func (s credentials) Session(ctx context.Context, secretHash []byte) (tokenHash []byte, err error) {
	return queryOne(ctx, s.readSession(), singleColumn[[]byte], `SELECT token_hash FROM web_sessions WHERE hash = $1 AND expires_at > {now}`, secretHash)
}

// CloseSession deletes the dashboard session whose secret has the SHA-256 secretHash. If there was such a session, it records that actor
// signed out from the network address.
func (s credentials) CloseSession(ctx context.Context, actor, address string, secretHash []byte) error {
	return s.write(ctx, func(tx session) error {
		if deleted, err := tx.exec(ctx, `DELETE FROM web_sessions WHERE hash = $1`, secretHash); err != nil || deleted == 0 {
			return err
		}
		return tx.recordEvent(ctx, Event{Kind: "access.signed_out", Actor: actor, Detail: "from=" + address})
	})
}
