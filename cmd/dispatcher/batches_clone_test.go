package main

import (
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/operators"
)

// A clone of a batch has the settings of the batch, and its tasks keep the fields that each of them set itself. A retry queues the tasks of a
// batch that ended without success.
func TestBatchesAreClonedAndRetried(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 1")
	d.writeFile("tasks.ndjson", `{"device":"d-1","payload":{"b":2},"priority":9}`+"\n"+`{"device":"d-2"}`+"\n")
	d.run("batches create --pool p --name night --kind x --priority 3 --lease 7m --max-attempts 1 --payload {\"a\":1} -f tasks.ndjson")
	var made operators.BatchCreated
	if d.decodeOutput(&made, "batches clone 1 --name again"); made.ID != 2 || made.Tasks != 2 {
		t.Fatalf("%+v", made)
	}
	var batch operators.Batch
	d.decodeOutput(&batch, "batches get 2")
	if batch.Name != "again" || batch.Kind != "x" || batch.Priority != 3 || batch.LeaseMS != 420_000 || batch.MaxAttempts != 1 || !batch.FinishInside {
		t.Errorf("%+v", batch)
	}
	var tasks []operators.Task
	d.decodeOutput(&tasks, "tasks list --batch 2 --device d-1")
	if len(tasks) != 1 || tasks[0].Priority != 9 || string(tasks[0].Payload) != `{"a":1,"b":2}` {
		t.Errorf("%+v", tasks)
	}
	if d.decodeOutput(&made, "batches clone 1 --dry-run"); made.ID != 0 || made.Tasks != 2 {
		t.Errorf("dry run: %+v", made)
	}
	d.runCommand("", "batches", "clone", "1", "--failed").expectExit(1).expectErrors("no_tasks")
	d.runCommand("", "batches", "clone", "99").expectExit(1).expectErrors("not_found")
	d.run("tasks cancel 1")
	if got := d.run("batches retry 1 --dry-run"); !strings.Contains(got, "1 task would be retried") {
		t.Error(got)
	}
	d.runCommand("", "batches", "retry", "1").expectExit(2).expectErrors("Retry 1 task", "--yes")
	if got := d.run("batches retry 1 --yes"); !strings.Contains(got, "1 task will be retried") {
		t.Error(got)
	}
}
