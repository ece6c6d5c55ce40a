package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestLeasesAreAcquiredRenewedAndReleased(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.run("pools create ci --capacity 5 --callers 1")
	var held struct {
		State, Holder string
		Lease, Token  int64
		Slot          int
	}
	d.read(&held, "leases acquire ci --holder job-1 --lease 1m")
	if held.State != "held" || held.Holder != "job-1" || held.Slot != 0 || held.Token == 0 {
		t.Fatalf("%+v", held)
	}
	d.try("", "leases", "acquire", "ci", "--holder", "job-2").exit(1).says("there is no slot", "callers hold 1 of the 1 slots", "(no_slot)")
	d.try("", "leases", "acquire", "ci", "--holder", "job-2", "--wait", "1s").exit(1).says("Waiting: callers hold 1 of the 1 slots", "no slot of pool ci within 1s")
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
	d.try("", "leases", "renew", "ci", fmt.Sprint(held.Lease)).exit(2)
	d.try("", "leases", "renew", "ci", "x", "--token", "1").exit(2).says("no number of a lease")
	d.try("", "leases", "release", "ci", fmt.Sprint(held.Lease), "--token", fmt.Sprint(held.Token+1)).exit(1).says("(lease_lost)")
	d.run("leases release " + of)
	d.run("leases release " + of)
	d.try("", strings.Fields("leases renew "+of)...).exit(1).says("(lease_lost)")

	d.run("pools set ci --callers all")
	if file := d.run("pools export --format yaml"); !strings.Contains(file, "callers: all") {
		t.Errorf("file:\n%s", file)
	}
	d.run("pools set ci --callers 3")
	file := d.run("pools export --format yaml")
	if !strings.Contains(file, "callers: 3") {
		t.Errorf("file:\n%s", file)
	}
	if got := d.try(strings.Replace(file, "callers: 3", "callers: all", 1), "pools", "apply", "-f", "-").exit(0).out; !strings.Contains(got, "callers") {
		t.Errorf("applied: %s", got)
	}
	d.run("pools set ci --longest-lease 2h")
	file = d.run("pools export --format yaml")
	if !strings.Contains(file, "longest_lease: 2h") {
		t.Errorf("file:\n%s", file)
	}
	if got := d.try(strings.Replace(file, "longest_lease: 2h", "longest_lease: 3h", 1), "pools", "apply", "-f", "-").exit(0).out; !strings.Contains(got, "longest_lease") {
		t.Errorf("applied: %s", got)
	}
	d.try("", "pools", "set", "ci", "--longest-lease", "25h").exit(1).says("longest_lease_ms", "86400000")
	d.try("", "pools", "set", "ci", "--callers", "some").exit(2)
	d.try("", "pools", "set", "ci", "--callers", "10001").exit(1).says("callers", "10000")
}
