package compose

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// step is one part of the test. run returns an error if the result is not the promised one.
type step struct {
	name string
	run  func(context.Context) error
}

// runSteps runs the steps in order until one fails, and returns a line for each step. The steps after a failure are not run. passed is true
// only if all steps ran without an error.
func runSteps(ctx context.Context, steps []step) (list string, passed bool) {
	var lines strings.Builder
	passed = true
	for _, s := range steps {
		if !passed {
			fmt.Fprintf(&lines, "FAILED %6s  %s: left out\n", "", s.name)
			continue
		}
		began := time.Now()
		err := s.run(ctx)
		passed = err == nil
		result := "passed"
		if err != nil {
			result = "FAILED"
		}
		fmt.Fprintf(&lines, "%s %4.0f s  %s\n", result, time.Since(began).Seconds(), s.name)
		if err != nil {
			fmt.Fprintf(&lines, "%v\n", err)
		}
	}
	return lines.String(), passed
}

func TestAStepThatIsLeftOutHasFailed(t *testing.T) {
	t.Parallel()
	ran := ""
	named := func(name string, err error) step {
		return step{name, func(context.Context) error { ran += name; return err }}
	}
	list, passed := runSteps(t.Context(), []step{named("a", nil), named("b", errors.New("broken")), named("c", nil)})
	if ran != "ab" || passed || strings.Count(list, "FAILED") != 2 || !strings.Contains(list, "broken") || !strings.Contains(list, "c: left out") {
		t.Errorf("ran %q, passed %t:\n%s", ran, passed, list)
	}
	if list, passed := runSteps(t.Context(), []step{named("a", nil)}); !passed || strings.Contains(list, "FAILED") {
		t.Errorf("passed %t:\n%s", passed, list)
	}
}
