package store

import (
	"context"
	"errors"
)

// lookedAt is the maximum number of rows that one call checks against a filter that no index serves.
const lookedAt = 50_000

// Stretch is the end of the search of one call through a list, as an id. All statements of one call search up to the same id and the next
// call continues after it, so no row is missed or returned twice.
type Stretch struct {
	End  int64 // the last id of the stretch; 0 means no bound
	More bool  // there are rows beyond End
}

// span is a range of the ids of a table, in a given order.
type span struct{ after, before, direction, limit string }

// of returns the conditions and the order for the rows of the span whose column has this value, served by the index on (column, id). The
// value is compared as part of a range, and the column is in the ORDER BY. For a plain equality Postgres might choose the primary key and
// read all rows with other values on the way.
func (s span) of(column, value string) string {
	if column == "" {
		return `id > ` + s.after + ` AND id < ` + s.before + ` ORDER BY id ` + s.direction + ` LIMIT ` + s.limit
	}
	return `(` + column + `, id) > (` + value + `, ` + s.after + `) AND (` + column + `, id) < (` + value + `, ` + s.before + `)` +
		` ORDER BY ` + column + ` ` + s.direction + `, id ` + s.direction + ` LIMIT ` + s.limit
}

// stretchOf returns the stretch of the query ids, which must return ids in the order of an index. It ends after lookedAt ids.
func (s *connection) stretchOf(ctx context.Context, q *query, ids, direction string) (Stretch, error) {
	return s.stretchAt(ctx, q, ids, direction, lookedAt)
}

// stretchAt returns the stretch that ends after looked ids.
func (s *connection) stretchAt(ctx context.Context, q *query, ids, direction string, looked int) (Stretch, error) {
	end, err := one(ctx, s.planned(), only[int64], `SELECT id FROM (`+ids+`) AS w ORDER BY id `+direction+` LIMIT 1 OFFSET `+q.arg(looked-1), q.args...)
	if errors.Is(err, ErrNotFound) {
		return Stretch{}, nil
	}
	return Stretch{End: end, More: true}, err
}
