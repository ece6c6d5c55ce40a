package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestLeasesAreAcquiredRenewedAndReleased(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create ci --capacity 5 --callers 1")
	var held struct {
		State, Holder string
		Lease, Token  int64
		Slot          int
	}
	d.decodeOutput(&held, "leases acquire ci --holder job-1 --lease 1m")
	if held.State != "held" || held.Holder != "job-1" || held.Slot != 0 || held.Token == 0 {
		t.Fatalf("%+v", held)
	}
	d.runCommand("", "leases", "acquire", "ci", "--holder", "job-2").expectExit(1).expectErrors("no slot:", "callers hold 1 of the 1 slots", "(no_slot)")
	d.runCommand("", "leases", "acquire", "ci", "--holder", "job-2", "--wait", "1s").expectExit(1).expectErrors("Waiting for a slot: position 1 in the queue; callers hold 1 of the 1 slots", "no slot of pool ci within 1s")
	if got := d.run("pools slots ci"); !strings.Contains(got, "/job-1 (caller)") {
		t.Errorf("slots:\n%s", got)
	}
	if got := d.run("leases list ci"); !strings.Contains(got, "job-1") || strings.Contains(got, "job-2") {
		t.Errorf("leases:\n%s", got)
	}
	if got := d.run("batches list"); !strings.Contains(got, "callers") {
		t.Errorf("batches:\n%s", got)
	}
	of := fmt.Sprintf("ci %d --token %d", held.Lease, held.Token)
	d.run("leases renew " + of + " --lease 2m")
	d.runCommand("", "leases", "renew", "ci", fmt.Sprint(held.Lease)).expectExit(2)
	d.runCommand("", "leases", "renew", "ci", "x", "--token", "1").expectExit(2).expectErrors("not the number of a lease")
	d.runCommand("", "leases", "release", "ci", fmt.Sprint(held.Lease), "--token", fmt.Sprint(held.Token+1)).expectExit(1).expectErrors("(lease_lost)")
	d.run("leases release " + of)
	d.run("leases release " + of)
	d.runCommand("", strings.Fields("leases renew "+of)...).expectExit(1).expectErrors("(lease_lost)")

	d.run("pools set ci --callers all")
	if file := d.run("pools export --format yaml"); !strings.Contains(file, "callers: all") {
		t.Errorf("file:\n%s", file)
	}
	d.run("pools set ci --callers 3")
	file := d.run("pools export --format yaml")
	if !strings.Contains(file, "callers: 3") {
		t.Errorf("file:\n%s", file)
	}
	if got := d.runCommand(strings.Replace(file, "callers: 3", "callers: all", 1), "pools", "apply", "-f", "-").expectExit(0).out; !strings.Contains(got, "callers") {
		t.Errorf("applied: %s", got)
	}
	d.run("pools set ci --longest-lease 2h")
	file = d.run("pools export --format yaml")
	if !strings.Contains(file, "longest_lease: 2h") {
		t.Errorf("file:\n%s", file)
	}
	if got := d.runCommand(strings.Replace(file, "longest_lease: 2h", "longest_lease: 3h", 1), "pools", "apply", "-f", "-").expectExit(0).out; !strings.Contains(got, "longest_lease") {
		t.Errorf("applied: %s", got)
	}
	d.run("pools set ci --longest-sleep 20m")
	if file = d.run("pools export --format yaml"); !strings.Contains(file, "longest_sleep: 20m") {
		t.Errorf("file:\n%s", file)
	}
	if got := d.runCommand(strings.Replace(file, "longest_sleep: 20m", "longest_sleep: 1h", 1), "pools", "apply", "-f", "-").expectExit(0).out; !strings.Contains(got, "longest_sleep") {
		t.Errorf("applied: %s", got)
	}
	d.runCommand("", "pools", "set", "ci", "--longest-lease", "25h").expectExit(1).expectErrors("longest_lease_ms", "86400000")
	d.runCommand("", "pools", "set", "ci", "--callers", "some").expectExit(2)
	d.runCommand("", "pools", "set", "ci", "--callers", "10001").expectExit(1).expectErrors("callers", "10000")
}
