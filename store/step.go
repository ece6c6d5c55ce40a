package store

import (
	"context"
	"fmt"
	"strings"
)

// step is a statement that changes rows. It takes the names of these rows from an input, a JSON array.
type step struct{ name, query string }

// runSteps runs several steps on one input. rows is the JSON array of the input, and the parameter input is the word in braces (see
// dialect) with which the steps read it. If the database allows it, all steps run as one statement, which saves a round trip and a parse
// for each step. Then a step may not see the changes of earlier steps, so no step may depend on them.
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

// execChained runs steps as one statement on rows. The parameter input is the word in braces with which the steps read rows.
func (s session) execChained(ctx context.Context, input, rows string, steps []step) error {
	with := make([]string, len(steps))
	for i, step := range steps {
		with[i] = fmt.Sprintf("step%d AS (%s)", i, step.query)
	}
	_, err := s.exec(ctx, chainCTEs(input, strings.Join(with, ", ")+" SELECT"), rows)
	return err
}

// chainCTEs returns a statement that begins with the CTEs in the parameter text. The statement reads its input (a word in braces) only
// once, for all CTEs.
func chainCTEs(input, text string) string {
	return "WITH {" + input + " once}, " + strings.ReplaceAll(text, "{"+input+"}", input)
}
