package main

import (
	"encoding/csv"
	"strings"
	"testing"
)

// newCommandRunnerWithTasks returns a commandRunner with a failed task, a running task and a waiting task.
func newCommandRunnerWithTasks(t *testing.T) *commandRunner {
	t.Helper()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 60")
	d.run("batches create --pool p --kind k --device d-1 --device d-2 --device d-3 --max-attempts 1")
	d.endTask("d-1", "failed")
	d.sendReport("d-2", `{"id":"1","attributes":{"note":"\u001b[31mred\u202e"}}`)
	return d
}

func TestTasksAreListedAndExported(t *testing.T) {
	t.Parallel()
	d := newCommandRunnerWithTasks(t)
	d.expectOutput("tasks list", `
ID  BATCH  POOL  DEVICE  STATE  ATTEMPTS  FINISHED  ERROR
1  1  p  d-1  failed  1  TIME  as told
2  1  p  d-2  dispatched  0
3  1  p  d-3  pending  0
`)
	for filter, want := range map[string]string{
		"--state failed": "1", "--device d-2": "2", "--error as*": "1", "--batch 1 --state pending": "3", "--pool p --kind k --limit 1": "1",
	} {
		var list []struct{ ID int }
		d.decodeOutput(&list, "tasks list "+filter)
		if len(list) != 1 || list[0].ID != int(want[0]-'0') {
			t.Errorf("%s: %+v, want task %s", filter, list, want)
		}
	}
	d.runCommand("", "tasks", "list", "--state", "done").expectExit(1).expectErrors("state", "(invalid_field)")
	rows, err := csv.NewReader(strings.NewReader(d.run("tasks export --batch 1"))).ReadAll()
	if err != nil || len(rows) != 4 || rows[0][0] != "id" {
		t.Errorf("%v, %v", rows, err)
	}
	if got := d.run("tasks export --format ndjson --state failed"); strings.Count(got, "\n") != 1 || !strings.HasPrefix(got, `{"id":1,`) {
		t.Errorf("%s", got)
	}
	d.runCommand("", "tasks", "export", "--format", "xml").expectExit(2)
	if got := d.run("devices list"); strings.ContainsAny(got, "\x1b\u202e") || !strings.Contains(got, `\u001b[31mred\u202e`) {
		t.Errorf("what a device says reaches the terminal: %q", got)
	}
}

func TestTaskShowsItsAttemptsAndWhyItWaits(t *testing.T) {
	t.Parallel()
	d := newCommandRunnerWithTasks(t)
	d.expectOutput("tasks get 1", `
id  1
batch  1
pool  p
device  d-1
kind  k
priority  0
state  failed
attempts_counted  1
created_at  TIME
finished_at  TIME
error  as told

Attempts that ended:
ATTEMPT  TOKEN  DEVICE  SLOT  GRANTED  ENDED  BY  ERROR  OUTPUT
1  1  d-1  0  TIME  TIME  failed  as told
`)
	if got := maskVariableText(d.run("tasks get 2")); !strings.Contains(got, "\nDispatched:\ntoken  2\n") {
		t.Errorf("the grant is not shown:\n%s", got)
	}
	d.run("batches pause 1 --reason", "the server is slow")
	why := maskVariableText(d.run("tasks why 3"))
	if !strings.HasPrefix(why, "task 3 is pending\n1. batch 1 is paused by bootstrap since ") || !strings.Contains(why, "the server is slow (batch_paused)\n  remedy: ") {
		t.Errorf("%s", why)
	}
	var reasons struct{ Reasons []struct{ Code string } }
	if d.decodeOutput(&reasons, "tasks why 3"); len(reasons.Reasons) == 0 || reasons.Reasons[0].Code != "batch_paused" {
		t.Errorf("%+v", reasons)
	}
	d.runCommand("", "tasks", "why", "99").expectExit(1).expectErrors("(not_found)", "dispatcher tasks list")
}

func TestATaskShowsThatItsOutputWasDropped(t *testing.T) {
	t.Parallel()
	d := newCommandRunnerWithTasks(t)
	d.sendReport("d-2", `{"id":"2","results":[{"task":2,"token":2,"status":"succeeded","output":"`+strings.Repeat("x", 32<<10)+`"}]}`)
	if got := maskVariableText(d.run("tasks get 2")); !strings.Contains(got, "\noutput_dropped  yes\n") || !strings.Contains(got, "  dropped: too large\n") {
		t.Errorf("%s", got)
	}
}

func TestTasksAreCancelledAndRetried(t *testing.T) {
	t.Parallel()
	d := newCommandRunnerWithTasks(t)
	d.runCommand("", "tasks", "cancel").expectExit(2).expectErrors("--batch")
	d.runCommand("", "tasks", "cancel", "1", "--batch", "1").expectExit(2)
	d.runCommand("", "tasks", "cancel", "--batch", "1").expectExit(2).expectErrors("Cancel 2 tasks", "--yes")
	d.expectOutput("tasks cancel --batch 1 --dry-run", "2 tasks would be cancelled\n")
	d.expectOutput("tasks cancel --batch 1 --state succeeded --yes", "0 tasks cancelled\n")
	if got := d.run("tasks list --state cancelled --output json"); got != "[]\n" {
		t.Errorf("cancelled without a yes: %s", got)
	}
	d.expectOutput("tasks cancel --batch 1 --yes", "1 task cancelled, 1 dispatched: asked to stop\n")
	d.expectOutput("tasks retry --state failed --dry-run", "1 task would be retried\n")
	var done struct{ Tasks, Asked int }
	if d.decodeOutput(&done, "tasks retry --state failed --yes"); done.Tasks != 1 {
		t.Errorf("%+v", done)
	}
	if got := maskVariableText(d.run("tasks cancel 1")); !strings.Contains(got, "state  cancelled\n") {
		t.Error(got)
	}
	if got := maskVariableText(d.run("tasks retry 3")); !strings.Contains(got, "state  pending\n") {
		t.Error(got)
	}
}

// One request changes at most 20,000 tasks. The command repeats it until all tasks are changed.
func TestBulkGoesOnToTheEnd(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 60")
	d.writeFile("tasks.csv", "device\n"+strings.Repeat("d-1\n", 20_500))
	d.run("batches create --pool p -f tasks.csv")
	d.expectOutput("tasks cancel --batch 1 --yes", "20500 tasks cancelled\n")
}

// The list of tasks shows the last error and the next try of a task that will be tried again.
func TestTheListShowsWhatWillBeTriedAgain(t *testing.T) {
	t.Parallel()
	for object, want := range map[string]string{
		`{"state":"failed","attempts_counted":1,"error":"no route"}`:                                                        "no route",
		`{"state":"pending","attempts_counted":0,"error":""}`:                                                               "",
		`{"state":"pending","attempts_counted":1,"error":"","last_error":"no route","retry_at":"2027-01-31T22:00:00.000Z"}`: "next try 2027-01-31 22:00:00Z: no route",
		`{"state":"pending","attempts_counted":1,"error":""}`:                                                               "next try with the next slot: lease ended without a result",
	} {
		e, err := decodeObject([]byte(object))
		if got := taskErrorText(e); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", object, got, err, want)
		}
	}
}
