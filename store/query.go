package store

import (
	"fmt"
	"strings"
)

// Listings return this many rows, unless asked for fewer or more.
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

// arg adds an argument, and is what stands for it.
func (q *query) arg(value any) string {
	q.args = append(q.args, value)
	return fmt.Sprintf("$%d", len(q.args))
}

// where adds a condition; %s in it stands for value.
func (q *query) where(cond string, value any) {
	q.conds = append(q.conds, fmt.Sprintf(cond, q.arg(value)))
}

// whereSet adds the condition unless value is the zero value.
func whereSet[T comparable](q *query, cond string, value T) {
	if value != *new(T) {
		q.where(cond, value)
	}
}

func (q *query) end(order string, limit int) (text string, args []any) {
	// A parameter: the text of a statement must not vary with what is asked for.
	text = q.whole() + order + " LIMIT " + q.arg(clampLimit(limit))
	return text, q.args
}

// whole is the query without an order and a limit.
func (q *query) whole() string {
	if len(q.conds) == 0 {
		return q.text
	}
	return q.text + " WHERE " + strings.Join(q.conds, " AND ")
}

func clampLimit(limit int) int {
	if limit <= 0 {
		return defaultLimit
	}
	return min(limit, maxLimit)
}
