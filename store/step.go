package store

import (
	"context"
	"fmt"
	"strings"
)

// step changes rows for those of its input.
type step struct{ name, query string }

// changes runs steps on one input, in one statement where the database can: a round trip
// and a parse less for each. So whether a step sees what the ones before it changed is left
// open.
func (s session) changes(ctx context.Context, input, rows string, steps []step) error {
	if s.chains {
		return s.chained(ctx, input, rows, steps)
	}
	return s.oneByOne(ctx, rows, steps)
}

func (s session) oneByOne(ctx context.Context, rows string, steps []step) error {
	for _, step := range steps {
		if _, err := s.exec(ctx, step.query, rows); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

func (s session) chained(ctx context.Context, input, rows string, steps []step) error {
	with := make([]string, len(steps))
	for i, step := range steps {
		with[i] = fmt.Sprintf("step%d AS (%s)", i, step.query)
	}
	_, err := s.exec(ctx, once(input, strings.Join(with, ", ")+" SELECT"), rows)
	return err
}

// once is a statement that begins with queries to be named, and reads its input one time
// for all of them.
func once(input, text string) string {
	return "WITH {" + input + " once}, " + strings.ReplaceAll(text, "{"+input+"}", input)
}
