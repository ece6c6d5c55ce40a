package store

import (
	"context"
	"time"
)

// changesKept is how long it is known that a token was changed. No replica remembers a
// token for longer than it was last read to be valid, which is less.
const changesKept = 2 * time.Hour

// TokenChanges are what a reading found of tokens that were changed or deleted.
type TokenChanges struct {
	Tokens []TokenChange
	Next   int64     // where the next reading begins; lower than the one before in another ledger
	Now    time.Time // by the database's clock
}

// TokenChange is about one token.
type TokenChange struct {
	Hash   []byte // of its secret; empty: of all tokens
	Device string // it is of; empty: of an operator
}

// ChangedTokens returns the tokens that were changed or deleted since the reading that
// ended with Next: all that it could not see. Some come again, while a transaction is open
// that began before them.
func (s credentials) ChangedTokens(ctx context.Context, from int64) (TokenChanges, error) {
	var changes TokenChanges
	read, err := collect(ctx, s.read(), func(c *TokenChange) []any {
		return []any{instant{&changes.Now}, &changes.Next, &c.Hash, &c.Device}
	}, `SELECT {now}, {next turn}, c.hash, coalesce(c.device, '') FROM (SELECT 1) AS once LEFT JOIN token_changes c ON c.turn >= $1`, from)
	for _, c := range read {
		if c.Hash != nil {
			changes.Tokens = append(changes.Tokens, c)
		}
	}
	return changes, err
}
