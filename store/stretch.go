package store

import (
	"context"
	"errors"
)

// lookedAt is how many rows one reading of a list holds against a filter that no index
// serves.
const lookedAt = 50_000

// Stretch is where such a reading ends: as an id, so that what is read up to it, by
// however many statements, and what is read beyond are all, and nothing twice.
type Stretch struct {
	End  int64 // the last id of it; 0: there is no bound
	More bool  // something is beyond
}

// stretchOf ends one of these ids, which stand in their order behind an index.
func (s *connection) stretchOf(ctx context.Context, q *query, ids, direction string) (Stretch, error) {
	end, err := one(ctx, s.planned(), only[int64], `SELECT id FROM (`+ids+`) AS w ORDER BY id `+direction+` LIMIT 1 OFFSET `+q.arg(lookedAt-1), q.args...)
	if errors.Is(err, ErrNotFound) {
		return Stretch{}, nil
	}
	return Stretch{End: end, More: true}, err
}
