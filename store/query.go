package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// A list returns at most defaultLimit rows if the caller gives no limit. With a limit, it returns at most maxLimit rows.
const (
	defaultLimit = 100
	maxLimit     = 1000
)

// query is a SELECT whose conditions depend on a filter.
type query struct {
	text  string
	conds []string
	args  []any
}

// addArg adds an argument to the statement and returns the placeholder for it, such as $1.
func (q *query) addArg(value any) (placeholder string) {
	q.args = append(q.args, value)
	return fmt.Sprintf("$%d", len(q.args))
}

// where adds the condition condSQL to the statement. %s in condSQL is replaced by the placeholder of value.
func (q *query) where(condSQL string, value any) {
	q.conds = append(q.conds, fmt.Sprintf(condSQL, q.addArg(value)))
}

// whereIfSet adds the condition condSQL to q as the method where does, but only if value is not the zero value.
func whereIfSet[Value comparable](q *query, condSQL string, value Value) {
	if value != *new(Value) {
		q.where(condSQL, value)
	}
}

// whereTimeBetween adds the condition that since <= time < until for the time in column. If since or until is zero, that bound is left out.
func (q *query) whereTimeBetween(column string, since, until time.Time) {
	if !since.IsZero() {
		q.where(column+" >= {epoch} + %s * {ms}", since.UnixMilli())
	}
	if !until.IsZero() {
		q.where(column+" < {epoch} + %s * {ms}", until.UnixMilli())
	}
}

// build returns the statement and its arguments. orderSQL is the ORDER BY clause, and limit the maximum number of rows.
func (q *query) build(orderSQL string, limit int) (text string, args []any) {
	// The limit is an argument, so that the text of a statement does not vary with it.
	text = q.textWithoutLimit() + orderSQL + " LIMIT " + q.addArg(clampLimit(limit))
	return text, q.args
}

// textWithoutLimit returns the query without order and limit.
func (q *query) textWithoutLimit() string {
	if len(q.conds) == 0 {
		return q.text
	}
	return q.text + " WHERE " + strings.Join(q.conds, " AND ")
}

// clampLimit returns limit, but at most maxLimit. If limit is 0, it returns defaultLimit.
func clampLimit(limit int) int {
	if limit <= 0 {
		return defaultLimit
	}
	return min(limit, maxLimit)
}

// searchLimit is the maximum number of rows that one call checks against a filter that has no index.
const searchLimit = 50_000

// SearchBound is the last id of the part of a list that one call searches. The caller reads the bound, restricts the filter to it (LimitTo or
// LastTask), and then reads the list. The next call continues after this id.
type SearchBound struct {
	End  int64 // the last id that the call searches; 0 means no bound
	More bool  // there are rows beyond End
}

// idRange is a range of the ids of a table: the ids > after and < before, sorted by direction (DESC or empty), at most limit rows. The fields
// are SQL texts.
type idRange struct{ after, before, direction, limit string }

// whereAndOrderSQL returns the conditions and the order for the range. If equalColumn is not empty, they select the rows with the value
// equalValueExpr (SQL) in equalColumn, by the index on (equalColumn, id). The condition compares the row (equalColumn, id), and the order begins
// with equalColumn, because with an equality for equalColumn Postgres might read along the primary key.
func (s idRange) whereAndOrderSQL(equalColumn, equalValueExpr string) string {
	if equalColumn == "" {
		return `id > ` + s.after + ` AND id < ` + s.before + ` ORDER BY id ` + s.direction + ` LIMIT ` + s.limit
	}
	return `(` + equalColumn + `, id) > (` + equalValueExpr + `, ` + s.after + `) AND (` + equalColumn + `, id) < (` + equalValueExpr + `, ` + s.before + `)` +
		` ORDER BY ` + equalColumn + ` ` + s.direction + `, id ` + s.direction + ` LIMIT ` + s.limit
}

// searchBound returns the id at which a search of searchLimit ids ends, or the zero value if idsSQL returns fewer ids. idsSQL is a query
// with the arguments of search that returns ids in the order of an index. direction is the SQL word for this order: DESC or empty.
func (s *connection) searchBound(ctx context.Context, search *query, idsSQL, direction string) (SearchBound, error) {
	return s.searchBoundAfter(ctx, search, idsSQL, direction, searchLimit)
}

// searchBoundAfter does the same as searchBound for a search of maxIDs ids instead of searchLimit ids.
func (s *connection) searchBoundAfter(ctx context.Context, search *query, idsSQL, direction string, maxIDs int) (SearchBound, error) {
	end, err := queryOne(ctx, s.customPlanSession(), singleColumn[int64], `SELECT id FROM (`+idsSQL+`) AS w ORDER BY id `+direction+` LIMIT 1 OFFSET `+search.addArg(maxIDs-1), search.args...)
	if errors.Is(err, ErrNotFound) {
		return SearchBound{}, nil
	}
	return SearchBound{End: end, More: true}, err
}
