package simulator

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/fleetslots/dispatcher/operators"
)

// maxExamples limits the number of findings that a summary describes.
const maxExamples = 5

// Comparison is the result of comparing tasks with the journals of the devices.
type Comparison struct {
	Compared  int64    // successes compared with the journals
	Lost      int64    // tasks that are missing from the list of their batch or not in a terminal state
	Differing int64    // outputs or states that differ from the journal
	Examples  []string // descriptions of the first findings, at most maxExamples
}

// compareBatch compares the tasks of a batch with the journals. lastTask is the highest task id of the batch.
func compareBatch(ctx context.Context, operator *Operator, results *resultLog, batch operators.Batch) (found Comparison, lastTask int64, err error) {
	seen := map[int64]bool{}
	for t, err := range operator.Tasks.List(ctx, operators.TaskFilter{Batch: batch.ID}) {
		if err != nil {
			return found, lastTask, err
		}
		if !seen[t.ID] {
			seen[t.ID] = true
			lastTask = max(lastTask, t.ID)
			found.addTask(t, results.recordsOf(t.ID))
		}
	}
	if missing := batch.Total - int64(len(seen)); missing != 0 {
		found.Lost += max(missing, -missing)
		found.addExample("batch %d lists %d of %d tasks", batch.ID, len(seen), batch.Total)
	}
	return found, lastTask, nil
}

func (c *Comparison) addTask(task operators.Task, records []record) {
	successes := countRecorded(records)
	switch {
	case !isFinalState(task.State):
		c.Lost++
		c.addExample("task %d is %q", task.ID, task.State)
		return
	case task.State != statusSucceeded && successes > 0:
		c.Differing++
		c.addExample("task %d is %q, but its success was recorded", task.ID, task.State)
		return
	case task.State != statusSucceeded:
		return
	}
	c.Compared++
	if successes > 1 {
		c.Differing++
		c.addExample("task %d: %d successes were recorded", task.ID, successes)
	}
	if !matchesJournal(task.Output, records) {
		c.Differing++
		c.addExample("task %d: output %.200q is not what %s wrote", task.ID, task.Output, task.Device)
	}
}

// addExample stores the text of a finding, unless maxExamples findings are stored already.
func (c *Comparison) addExample(format string, args ...any) {
	if len(c.Examples) < maxExamples {
		c.Examples = append(c.Examples, fmt.Sprintf(format, args...))
	}
}

func (c *Comparison) add(other Comparison) {
	c.Compared += other.Compared
	c.Lost += other.Lost
	c.Differing += other.Differing
	c.Examples = append(c.Examples, other.Examples...)
	c.Examples = c.Examples[:min(len(c.Examples), maxExamples)]
}

func countRecorded(records []record) (n int) {
	for _, r := range records {
		if r.status == statusSucceeded && r.outcome == outcomeRecorded {
			n++
		}
	}
	return n
}

// matchesJournal reports whether output is equal, byte for byte, to the output of a success in the journal. If the server
// acknowledged any success as recorded, only the acknowledged successes are compared. Otherwise all successes are
// compared, because the acknowledgement was lost or the success was late.
func matchesJournal(output []byte, records []record) bool {
	mustBeRecorded := countRecorded(records) > 0
	return slices.ContainsFunc(records, func(r record) bool {
		return r.status == statusSucceeded && (r.outcome == outcomeRecorded || !mustBeRecorded) && (!r.sentWithOutput || bytes.Equal(r.output, output))
	})
}

func isFinalState(state string) bool {
	return slices.Contains([]string{"succeeded", "failed", "timed_out", "cancelled", "expired", "suppressed"}, state)
}
