package main

import (
	"strings"
	"testing"
)

// TestAllPoolsArePausedByOneCommand checks that --all pauses all pools after a confirmation, and resumes the pools that the same token paused.
func TestAllPoolsArePausedByOneCommand(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create a --capacity 1")
	d.run("pools create b --capacity 1")
	d.runCommand("", "pools", "pause", "--all").expectExit(2).expectErrors("Pause 2 pools: --yes is required")
	d.expectOutput("pools pause --all --yes --reason down", "2 pools paused\n")
	d.expectOutput("pools pause --all", "0 pools paused\n")
	d.expectOutput("pools resume --all --yes", "2 pools resumed\n")
	d.runCommand("", "pools", "pause", "a", "--stop-running").expectExit(2).expectErrors("--stop-running: only with --all")
	d.run("batches create --pool a --device d-1")
	d.eventually("a grant", func() bool { return d.sendReport("d-1", `{"id":"1"}`)["reason"] == "granted" })
	d.run("pools pause --all --yes")
	d.runCommand("", "pools", "pause", "--all", "--stop-running").expectExit(2).expectErrors("Pause 0 pools, and ask the devices that hold 1 slot to stop: --yes is required")
	d.expectOutput("pools pause --all --yes --stop-running", "0 pools paused, 1 device asked to stop\n")
	for _, wrong := range []string{"pools pause", "pools resume a --all"} {
		d.runCommand("", strings.Fields(wrong)...).expectExit(2).expectErrors("give either a pool or --all")
	}
}
