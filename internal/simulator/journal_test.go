package simulator

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func newTestJournal(tasks ...int64) *journal {
	j := &journal{}
	for _, n := range tasks {
		j.add(&journalEntry{grantKey: grantKey{n, n}, status: statusSucceeded, output: json.RawMessage(`1`)})
	}
	return j
}

func taskIDs(results []result) []int64 {
	var tasks []int64
	for _, r := range results {
		tasks = append(tasks, r.Task)
	}
	return tasks
}

func TestJournalSendsUntilSettled(t *testing.T) {
	t.Parallel()
	j := newTestJournal(1, 2)
	if !j.hasUnreportedResults() {
		t.Error("new results are not fresh")
	}
	for range 2 {
		if diff := cmp.Diff([]int64{1, 2}, taskIDs(j.nextResults())); diff != "" {
			t.Error(diff)
		}
	}
	if j.hasUnreportedResults() {
		t.Error("sent results are fresh")
	}
	j.dropResult(grantKey{1, 7}) // another grant of the same task
	j.dropResult(grantKey{1, 1})
	if diff := cmp.Diff([]int64{2}, taskIDs(j.nextResults())); diff != "" {
		t.Error(diff)
	}
}

func TestJournalLimitsAReport(t *testing.T) {
	t.Parallel()
	j := &journal{}
	for n := range int64(150) {
		j.add(&journalEntry{grantKey: grantKey{n, n}})
	}
	if got := len(j.nextResults()); got != 100 {
		t.Errorf("%d results in a report, want 100", got)
	}
	if !j.hasUnreportedResults() || j.highestToken() != 149 {
		t.Errorf("fresh %t, highest token %d", j.hasUnreportedResults(), j.highestToken())
	}
}

// TestJournalNeverSendsTheSameBytesAgain checks results that the server refuses: they are sent one by one, then
// without their output, and then they are dropped.
func TestJournalNeverSendsTheSameBytesAgain(t *testing.T) {
	t.Parallel()
	j := newTestJournal(1, 2)
	if j.handleRefusedResults(nil) != nil || j.handleRefusedResults(j.nextResults()) != nil {
		t.Fatal("dropped before going one by one")
	}
	if diff := cmp.Diff([]int64{1}, taskIDs(j.nextResults())); diff != "" {
		t.Fatal(diff)
	}
	if j.handleRefusedResults(j.nextResults()) != nil {
		t.Fatal("dropped before going without output")
	}
	if r := j.nextResults(); len(r) != 1 || r[0].Output != nil {
		t.Fatalf("second try: %+v, want no output", r)
	}
	if e := j.handleRefusedResults(j.nextResults()); e == nil || e.task != 1 {
		t.Fatalf("dropped %+v, want task 1", e)
	}
	if r := j.nextResults(); len(r) != 1 || r[0].Task != 2 || string(r[0].Output) != "1" {
		t.Fatalf("next: %+v, want task 2 with its output", r)
	}
	j.dropResult(grantKey{2, 2})
	if j.oneByOne || len(j.pending) != 0 {
		t.Errorf("alone %t, %d pending", j.oneByOne, len(j.pending))
	}
}

func TestReportsKeepTheBytesOfOutputs(t *testing.T) {
	t.Parallel()
	d := newDice(3, 4)
	seen := map[string]bool{}
	for i := range int64(500) {
		output := d.randomOutput(i, 0)
		if !json.Valid(output) || !utf8.Valid(output) || bytes.ContainsRune(output, 0) {
			t.Fatalf("output %q", output)
		}
		seen[string(output)] = true
		body := report{Results: []result{{Task: i, Output: output}}}.encode()
		if !bytes.Contains(body, output) {
			t.Fatalf("report %q does not hold %q", body, output)
		}
	}
	if len(seen) != 500 {
		t.Errorf("%d different outputs of 500", len(seen))
	}
}

func TestGarbageIsNoReport(t *testing.T) {
	t.Parallel()
	d := newDice(1, 1)
	kinds := map[int]bool{}
	for range 100 {
		b := d.newMalformedReport()
		kinds[len(b)] = true
		var r report
		if err := json.Unmarshal(b, &r); err == nil && len(r.Results) <= 100 && len(b) <= 64<<10 && !strings.Contains(string(b), `"a":{"a":`) {
			t.Errorf("%.80q is a report", b)
		}
	}
	if len(kinds) != 6 {
		t.Errorf("%d kinds of garbage, want 6", len(kinds))
	}
}
