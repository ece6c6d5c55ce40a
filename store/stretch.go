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

// span is a part of the ids of a table, in their order.
type span struct{ after, before, direction, limit string }

// of are the rows of the span whose column has this value, by the index that has it before
// the id. The value is a bound, and stands in the order: where it is equal Postgres may
// think the primary key as good, and read all rows of others on the way.
func (s span) of(column, value string) string {
	if column == "" {
		return `id > ` + s.after + ` AND id < ` + s.before + ` ORDER BY id ` + s.direction + ` LIMIT ` + s.limit
	}
	return `(` + column + `, id) > (` + value + `, ` + s.after + `) AND (` + column + `, id) < (` + value + `, ` + s.before + `)` +
		` ORDER BY ` + column + ` ` + s.direction + `, id ` + s.direction + ` LIMIT ` + s.limit
}

// stretchOf ends one of these ids, which stand in their order behind an index.
func (s *connection) stretchOf(ctx context.Context, q *query, ids, direction string) (Stretch, error) {
	return s.stretchAt(ctx, q, ids, direction, lookedAt)
}

// stretchAt ends one after so many ids.
func (s *connection) stretchAt(ctx context.Context, q *query, ids, direction string, looked int) (Stretch, error) {
	end, err := one(ctx, s.planned(), only[int64], `SELECT id FROM (`+ids+`) AS w ORDER BY id `+direction+` LIMIT 1 OFFSET `+q.arg(looked-1), q.args...)
	if errors.Is(err, ErrNotFound) {
		return Stretch{}, nil
	}
	return Stretch{End: end, More: true}, err
}
