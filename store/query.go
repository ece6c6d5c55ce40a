package store

import (
	"fmt"
	"strings"
)

// These are the numbers of rows that lists return: defaultLimit if no limit is given, and never more than maxLimit.
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

// arg adds an argument to the statement and returns the placeholder for it, such as $1.
func (q *query) arg(value any) string {
	q.args = append(q.args, value)
	return fmt.Sprintf("$%d", len(q.args))
}

// where adds the condition cond to the statement. %s in cond is replaced by the placeholder of value.
func (q *query) where(cond string, value any) {
	q.conds = append(q.conds, fmt.Sprintf(cond, q.arg(value)))
}

// whereSet adds the condition cond to q like the method where, but only if value is not the zero value.
func whereSet[T comparable](q *query, cond string, value T) {
	if value != *new(T) {
		q.where(cond, value)
	}
}

// build returns the statement and its arguments. order is the ORDER BY clause, and limit the maximum number of rows.
func (q *query) build(order string, limit int) (text string, args []any) {
	// The limit is an argument, so that the text of a statement does not vary with it.
	text = q.withoutLimit() + order + " LIMIT " + q.arg(clampLimit(limit))
	return text, q.args
}

// withoutLimit returns the query without order and limit.
func (q *query) withoutLimit() string {
	if len(q.conds) == 0 {
		return q.text
	}
	return q.text + " WHERE " + strings.Join(q.conds, " AND ")
}

// clampLimit returns limit, at most 1000, or 100 if limit is 0.
func clampLimit(limit int) int {
	if limit <= 0 {
		return defaultLimit
	}
	return min(limit, maxLimit)
}
