package store

import (
	"context"
	"fmt"
	"strings"
)

// step is a statement that changes the rows that an input (a JSON array of rows) names.
type step struct{ name, query string }

// runSteps runs several steps on one input: rows is the JSON array of its rows, and input the word in braces (see dialect) with which the
// steps read it. If the database can, it runs them as one statement, which saves a round trip and a parse for each step. Then a step may
// not see the changes of earlier steps, so no step may depend on them.
func (s session) runSteps(ctx context.Context, input, rows string, steps []step) error {
	if s.canChainWrites {
		return s.execChained(ctx, input, rows, steps)
	}
	return s.execEach(ctx, rows, steps)
}

// execEach runs each of steps as a statement of its own on rows.
func (s session) execEach(ctx context.Context, rows string, steps []step) error {
	for _, step := range steps {
		if _, err := s.exec(ctx, step.query, rows); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// execChained runs steps as one statement on rows; input is as in runSteps.
func (s session) execChained(ctx context.Context, input, rows string, steps []step) error {
	with := make([]string, len(steps))
	for i, step := range steps {
		with[i] = fmt.Sprintf("step%d AS (%s)", i, step.query)
	}
	_, err := s.exec(ctx, chainCTEs(input, strings.Join(with, ", ")+" SELECT"), rows)
	return err
}

// chainCTEs returns a statement that begins with text (CTEs) and reads its input (a word in braces) once for all of them.
func chainCTEs(input, text string) string {
	return "WITH {" + input + " once}, " + strings.ReplaceAll(text, "{"+input+"}", input)
}
