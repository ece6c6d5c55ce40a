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

// where adds a condition; %s in it stands for value.
func (q *query) where(cond string, value any) {
	q.args = append(q.args, value)
	q.conds = append(q.conds, fmt.Sprintf(cond, fmt.Sprintf("$%d", len(q.args))))
}

// whereSet adds the condition unless value is the zero value.
func whereSet[T comparable](q *query, cond string, value T) {
	if value != *new(T) {
		q.where(cond, value)
	}
}

func (q *query) end(order string, limit int) (text string, args []any) {
	text = q.text
	if len(q.conds) > 0 {
		text += " WHERE " + strings.Join(q.conds, " AND ")
	}
	// A parameter: the text of a statement must not vary with what is asked for.
	args = append(q.args, clampLimit(limit))
	return text + order + fmt.Sprintf(" LIMIT $%d", len(args)), args
}

func clampLimit(limit int) int {
	if limit <= 0 {
		return defaultLimit
	}
	return min(limit, maxLimit)
}
