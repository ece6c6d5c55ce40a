package main

import (
	"encoding/csv"
	"fmt"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/operators"
)

// endTaskWith lets a device end its next task with an output.
func (d *commandRunner) endTaskWith(device, status, fields string) {
	d.Helper()
	task, ok := d.sendReport(device, `{"id":"1"}`)["task"].(map[string]any)
	if !ok {
		d.Fatalf("%s has nothing to do", device)
	}
	d.sendReport(device, fmt.Sprintf(`{"id":"2","accept":false,"results":[{"task":%.0f,"token":%.0f,"status":%q%s}]}`, task["id"], task["token"], status, fields))
}

func TestBatchResults(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 60")
	d.run("devices create d-1 --tag site=a")
	d.run("batches create --pool p --max-attempts 1 --device d-1 --device d-2 --device d-3 --device d-4")
	d.endTaskWith("d-1", "succeeded", `,"output":{"down":90,"net":{"rtt":7},"note":"=x","more":[1]}`)
	d.endTaskWith("d-2", "succeeded", `,"output":{"down":110,"ok":false}`)
	d.endTaskWith("d-3", "failed", `,"error":"no route"`)
	out := d.run("batches results 1 --aggregate down --by-tag site")
	for _, part := range []string{
		"3/4 75%, 0 dispatched, 1 failed", "down, of 2 tasks", "MIN  P5  P50  P95  P99    MAX  MEAN  NUMBERS", "90   91  100  109  109.8  110  100   2",
		"TAG        ENDED  FAILED", "a          1      0", "(without)  2      1", "FAILED  ERROR\n1       no route\n",
	} {
		if !strings.Contains(out, part) {
			t.Errorf("no %q in\n%s", part, out)
		}
	}
	rows := out[strings.Index(out, "TASK  DEVICE"):]
	if head := strings.Join(strings.Fields(strings.Split(rows, "\n")[0]), " "); head != "TASK DEVICE STATE ENDED RAN down net.rtt note ok ERROR" {
		t.Errorf("%q", head)
	}
	if flat := strings.Join(strings.Fields(rows), " "); !strings.Contains(flat, "110 false") || !strings.Contains(flat, "90 7 =x") || !strings.HasSuffix(flat, "no route") {
		t.Errorf("%s", rows)
	}
	if text := d.run("batches results 1 --aggregate note --fields note --state succeeded"); !strings.Contains(text, "TASKS  VALUE\n1      =x\n") || strings.Contains(text, "d-3") {
		t.Error(text)
	}
	if text := d.run("batches results 1 --since 2h"); strings.Contains(text, "ended in that time") || !strings.Contains(text, "no route") {
		t.Error(text)
	}
	if text := d.run("batches results 1 --until 2h"); !strings.Contains(text, "0 of 3 scanned results ended in that time; 3 results match") || strings.Contains(text, "no route") {
		t.Error(text)
	}
	table, err := csv.NewReader(strings.NewReader(d.run("batches results 1 --csv"))).ReadAll()
	if err != nil || len(table) != 4 || strings.Join(table[0][7:], " ") != "output.down output.net.rtt output.note output.more output.ok output" || table[1][9] != "'=x" {
		t.Errorf("%q, %v", table, err)
	}
	for _, form := range []string{"--json", "-o json"} {
		var read operators.Results
		d.decodeOutput(&read, "batches results 1 --aggregate down "+form+" --limit 2")
		if len(read.Results) != 2 || read.Summary.Aggregate.Number.Count != 2 || read.NextPageToken == "" {
			t.Errorf("%s: %+v", form, read)
		}
	}
	for line, want := range map[string]struct {
		code int
		says string
	}{
		"9": {1, "not_found"}, "x": {2, "not a number"}, "1 --sample 50001": {1, "sample"}, "1 --state pending": {1, "state"}, "1 --limit -1": {2, "--limit"},
		"1 --csv --json": {2, "--csv"}, "1 --since soon": {2, "must be a duration before now"}, "1 --csv --aggregate a": {1, "aggregate"},
	} {
		d.runCommand("", append([]string{"batches", "results"}, strings.Fields(line)...)...).expectExit(want.code).expectErrors(want.says)
	}
}
