package store

import (
	"context"
	"errors"
)

// searchLimit is the maximum number of rows that one call checks against a filter that has no index.
const searchLimit = 50_000

// SearchBound is the id at which one call ends its search through a list. All statements of one call search up to this id, and the next
// call continues after it. So no row is missed or returned twice. A stretch is the range of ids that one call searches.
type SearchBound struct {
	End  int64 // the last id of the stretch; 0 means no bound
	More bool  // there are rows beyond End
}

// idRange is a range of the ids of a table, as SQL texts: the ids between after and before, in the order direction, at most limit rows.
type idRange struct{ after, before, direction, limit string }

// rangeSQL returns the conditions and the order for rows in the range. If column is not empty, it selects only rows in which column has the
// value valueExpr (an SQL expression), and the query uses the index on (column, id).
//
// column is a part of the compared row value and of the ORDER BY. With a plain equality, Postgres might read along the primary key and also
// read all rows with other values.
func (s idRange) rangeSQL(column, valueExpr string) string {
	if column == "" {
		return `id > ` + s.after + ` AND id < ` + s.before + ` ORDER BY id ` + s.direction + ` LIMIT ` + s.limit
	}
	return `(` + column + `, id) > (` + valueExpr + `, ` + s.after + `) AND (` + column + `, id) < (` + valueExpr + `, ` + s.before + `)` +
		` ORDER BY ` + column + ` ` + s.direction + `, id ` + s.direction + ` LIMIT ` + s.limit
}

// searchBound returns the id at which a search of searchLimit ids ends. The query idsSQL must return the ids in the order of an index;
// direction is the SQL word for this order. search has the arguments of idsSQL. If idsSQL returns fewer than searchLimit ids, searchBound
// returns the zero value.
func (s *connection) searchBound(ctx context.Context, search *query, idsSQL, direction string) (SearchBound, error) {
	return s.searchBoundAfter(ctx, search, idsSQL, direction, searchLimit)
}

// searchBoundAfter does the same as searchBound, with maxIDs in place of searchLimit.
func (s *connection) searchBoundAfter(ctx context.Context, search *query, idsSQL, direction string, maxIDs int) (SearchBound, error) {
	end, err := queryOne(ctx, s.customPlanSession(), singleColumn[int64], `SELECT id FROM (`+idsSQL+`) AS w ORDER BY id `+direction+` LIMIT 1 OFFSET `+search.arg(maxIDs-1), search.args...)
	if errors.Is(err, ErrNotFound) {
		return SearchBound{}, nil
	}
	return SearchBound{End: end, More: true}, err
}
