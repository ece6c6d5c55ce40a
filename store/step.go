package store

import (
	"context"
	"fmt"
	"strings"
)

// step changes one row for each row of its input.
type step struct{ name, query string }

// each runs steps on one input of want rows, in one statement where the
// database can: a round trip and a parse less for each. So whether a step sees
// what the ones before it changed is left open. Every step must change want rows.
func (s session) each(ctx context.Context, in string, want int, steps []step) error {
	changed, err := s.changes(ctx, in, steps)
	if err != nil {
		return err
	}
	for i, n := range changed {
		if n != int64(want) {
			return fmt.Errorf("%s: %d rows changed, not %d", steps[i].name, n, want)
		}
	}
	return nil
}

// changes runs steps, and returns how many rows each has changed.
func (s session) changes(ctx context.Context, in string, steps []step) ([]int64, error) {
	if s.chains {
		return s.chained(ctx, in, steps)
	}
	return s.oneByOne(ctx, in, steps)
}

func (s session) oneByOne(ctx context.Context, in string, steps []step) ([]int64, error) {
	changed := make([]int64, len(steps))
	for i, step := range steps {
		n, err := s.exec(ctx, step.query, in)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
		changed[i] = n
	}
	return changed, nil
}

func (s session) chained(ctx context.Context, in string, steps []step) ([]int64, error) {
	with, counts := make([]string, len(steps)), make([]string, len(steps))
	changed, dest := make([]int64, len(steps)), make([]any, len(steps))
	for i, step := range steps {
		with[i] = fmt.Sprintf("step%d AS (%s RETURNING 1)", i, step.query)
		counts[i] = fmt.Sprintf("(SELECT count(*) FROM step%d)", i)
		dest[i] = &changed[i]
	}
	query := "WITH " + strings.Join(with, ", ") + " SELECT " + strings.Join(counts, ", ")
	return changed, s.rowOf(ctx, query, []any{in}, dest...)
}
