package main

import (
	"strings"
	"testing"
)

func TestEventsOfATime(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 60")
	for args, want := range map[string]int{
		"events list --since 1h": 1, "events list --since 1h --until 30m": 0, "events list --until 1d": 0,
		"events list --since 2020-01-01T00:00:00Z --kind pool.created": 1, "events --since 2h --order oldest": 1, "events --until 2020-01-01T00:00:00Z": 0,
	} {
		var list []struct{ Kind string }
		if d.decodeOutput(&list, args); len(list) != want {
			t.Errorf("%s: %+v, want %d", args, list, want)
		}
	}
	d.runCommand("", "events", "list", "--since", "yesterday").expectExit(2).expectErrors("must be a duration before now")
	if text := d.run("events"); !strings.Contains(text, "Usage:") {
		t.Errorf("events alone shows no help: %s", text)
	}
}
