package store

import (
	"context"
	"time"
)

// changesKept is the time for which the ledger keeps the record that a token was changed. A replica caches a valid token for some time;
// changesKept must be longer than that time.
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

// ChangedTokens returns the tokens that were changed or deleted since an earlier call. The parameter since is the Next that the earlier
// call returned. ChangedTokens misses no change. It may return a change several times while a transaction is open that began before the
// change.
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
