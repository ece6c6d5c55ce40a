package main

import (
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/operators"
)

func TestWhySaysWhatManyWaitFor(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 2")
	d.run("batches create --pool p --device d-1 --device d-2 --device d-3")
	d.run("batches create --pool p --device d-4")
	d.run("batches pause 2")
	d.expectOutput("pools why p", `
4 tasks wait
COUNT  WHY  CODE  UNTIL  REMEDY
3  device not registered  device_unknown  check their names; if the names are right, register the devices: dispatcher devices import -f FILE; or cancel the tasks: dispatcher tasks cancel TASK
1  batch paused  batch_paused  resume the batch: dispatcher batches resume 2
`)
	d.expectOutput("batches why 2", `
1 task waits
COUNT  WHY  CODE  UNTIL  REMEDY
1  batch paused  batch_paused  resume the batch: dispatcher batches resume 2
`)
	if got := maskVariableText(d.run("pools why p --code device_unknown --limit 2")); !strings.HasPrefix(got, "TASK  BATCH  DEVICE  LAST SEEN  CODE  UNTIL  DETAIL\n1  1  d-1  device_unknown") || strings.Count(got, "\n") != 3 {
		t.Errorf("two of one part:\n%s", got)
	}
	var said operators.Waiting
	if d.decodeOutput(&said, "batches why 1"); said.Total != 3 || len(said.Parts) != 1 || said.Parts[0].Code != "device_unknown" {
		t.Errorf("%+v", said)
	}
	var listed []operators.WaitingTask
	if d.decodeOutput(&listed, "pools why p --code batch_paused"); len(listed) != 1 || listed[0].Device != "d-4" {
		t.Errorf("%+v", listed)
	}
	d.run("devices create d-4")
	d.run("devices block d-4 --reason smoke")
	if got := d.run("devices why d-4"); !strings.HasPrefix(got, "the first task of device d-4 is task 4\n1. device d-4 is blocked by bootstrap since ") || !strings.Contains(got, " because: smoke (device_blocked)\n") {
		t.Errorf("why of a device:\n%s", got)
	}
	d.run("devices create d-5")
	d.expectOutput("devices why d-5", "no task waits for device d-5\n")
	d.runCommand("", "pools", "why", "p", "--code", "hunger").expectExit(1).expectErrors("code", "hunger", "(invalid_field)")
	d.runCommand("", "pools", "why", "none").expectExit(1).expectErrors("(not_found)", "dispatcher pools list")
	d.runCommand("", "batches", "why", "x").expectExit(2)

	d.run("pools pause p")
	if got := maskVariableText(d.run("batches get 1")); !strings.Contains(got, "state  held_up\n") || strings.Contains(got, "running") {
		t.Errorf("in a paused pool:\n%s", got)
	}
	if got := maskVariableText(d.run("batches list")); !strings.Contains(got, "p  held_up  0/3 0%") || strings.Contains(got, "running") {
		t.Errorf("in a paused pool:\n%s", got)
	}
	var b operators.Batch
	if d.decodeOutput(&b, "batches get 1"); b.State != "running" || b.Condition != "held_up" {
		t.Errorf("%s, %s", b.State, b.Condition)
	}
}
