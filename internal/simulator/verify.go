package simulator

import (
	"bytes"
	"context"
	"fmt"

	"github.com/fleetslots/dispatcher/operators"
)

// maxExamples limits the number of findings that a summary describes.
const maxExamples = 5

// compareBatch compares the tasks of a batch with results, the results in the journals, and adds its findings to the summary. last is
// the highest id of these tasks.
func (s *Summary) compareBatch(ctx context.Context, operator *Operator, results *resultLog, batch operators.Batch) (last int64, err error) {
	var found batchFindings
	seen := map[int64]bool{}
	for t, err := range operator.Tasks.List(ctx, operators.TaskFilter{Batch: batch.ID}) {
		if err != nil {
			return last, err
		}
		if seen[t.ID] {
			continue
		}
		seen[t.ID] = true
		last = max(last, t.ID)
		found.add(t, results.recordsOf(t.ID))
	}
	if missing := batch.Total - int64(len(seen)); missing != 0 {
		found.lost += max(missing, -missing)
		found.examples = append(found.examples, fmt.Sprintf("batch %d lists %d of %d tasks", batch.ID, len(seen), batch.Total))
	}
	s.Compared += found.compared
	s.Lost += found.lost
	s.Differing += found.differing
	s.Examples = append(s.Examples, found.examples...)
	s.Examples = s.Examples[:min(len(s.Examples), maxExamples)]
	return last, nil
}

// batchFindings holds the findings of one batch. If a batch could not be read completely, its findings are discarded.
type batchFindings struct {
	compared, lost, differing int64
	examples                  []string
}

// add compares a task with the records of its results, and adds the findings.
func (v *batchFindings) add(task operators.Task, records []record) {
	if !isTerminal(task.State) {
		v.lost++
		v.addExample("task %d is %q", task.ID, task.State)
		return
	}
	successes := countRecorded(records)
	if task.State != statusSucceeded {
		if successes > 0 {
			v.differing++
			v.addExample("task %d is %q, but its success was recorded", task.ID, task.State)
		}
		return
	}
	v.compared++
	if successes > 1 {
		v.differing++
		v.addExample("task %d: %d successes were recorded", task.ID, successes)
	}
	if !matchesJournal(task.Output, records) {
		v.differing++
		v.addExample("task %d: output %.200q is not what %s wrote", task.ID, task.Output, task.Device)
	}
}

// addExample keeps a finding as text, as in fmt.Sprintf, if there are fewer than maxExamples.
func (v *batchFindings) addExample(format string, args ...any) {
	if len(v.examples) < maxExamples {
		v.examples = append(v.examples, fmt.Sprintf(format, args...))
	}
}

// countRecorded returns how many successes the server acknowledged as recorded.
func countRecorded(records []record) (n int) {
	for _, r := range records {
		if r.status == statusSucceeded && r.outcome == outcomeRecorded {
			n++
		}
	}
	return n
}

// matchesJournal reports whether an output is equal, byte for byte, to the output of a success in the journal. If the
// server acknowledged a success as recorded, matchesJournal compares only such successes. Otherwise it compares all
// successes, because the acknowledgement may have been lost, or the success may have been late.
func matchesJournal(output []byte, records []record) bool {
	var recorded, others []record
	for _, r := range records {
		switch {
		case r.status != statusSucceeded:
		case r.outcome == outcomeRecorded:
			recorded = append(recorded, r)
		default:
			others = append(others, r)
		}
	}
	if len(recorded) == 0 {
		recorded = others
	}
	for _, r := range recorded {
		if !r.sentWithOutput || bytes.Equal(r.output, output) {
			return true
		}
	}
	return false
}

// isTerminal reports whether a task in this state has ended.
func isTerminal(state string) bool {
	switch state {
	case "succeeded", "failed", "timed_out", "cancelled", "expired", "suppressed":
		return true
	}
	return false
}
