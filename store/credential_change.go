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
	Hashes [][]byte  // of their secrets; an empty one stands for all tokens
	Next   int64     // where the next reading begins; lower than the one before in another ledger
	Now    time.Time // by the database's clock
}

// ChangedTokens returns the tokens that were changed or deleted since the reading that
// ended with Next: all that it could not see. Some come again, while a transaction is open
// that began before them.
func (s credentials) ChangedTokens(ctx context.Context, from int64) (TokenChanges, error) {
	var changes TokenChanges
	hashes, err := collect(ctx, s.read(), func(hash *[]byte) []any {
		return []any{instant{&changes.Now}, &changes.Next, hash}
	}, `SELECT {now}, {next turn}, c.hash FROM (SELECT 1) AS once LEFT JOIN token_changes c ON c.turn >= $1`, from)
	for _, hash := range hashes {
		if hash != nil {
			changes.Hashes = append(changes.Hashes, hash)
		}
	}
	return changes, err
}
