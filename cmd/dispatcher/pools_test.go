package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

func TestPoolsAreCreatedChangedPausedAndDeleted(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.expectOutput("pools list", "NAME  CAPACITY  HELD  TASKS WAIT  TROUBLE  LEASE  PAUSED  OPENS  CLOSES  UPDATED\n")
	d.expectOutput("pools create ar:330100 --capacity 2 --lease 90s", `
name  ar:330100
capacity  2
lease  1m30s
paused  no
longest_lease  24h
longest_sleep  10m
version  1
created_at  TIME
updated_at  TIME
`)
	d.runCommand("", "pools", "create", "ar:330100", "--capacity", "2").expectExit(1).expectErrors("pool ar:330100 already exists", "dispatcher pools set ar:330100")
	d.runCommand("", "pools", "create", "-x").expectExit(2)
	d.runCommand("", "pools", "create", "b").expectExit(2).expectErrors("capacity", "not set")
	d.runCommand("", "pools", "create", "a/b", "--capacity", "2").expectExit(1).expectErrors("invalid_pool")
	d.expectOutput("pools set ar:330100 --capacity 3", `
name  ar:330100
capacity  3
lease  1m30s
paused  no
longest_lease  24h
longest_sleep  10m
windows  0 1 * * * 4h Asia/Shanghai
opens_at  TIME
closes_at  TIME
version  2
created_at  TIME
updated_at  TIME
`, "--window", "0 1 * * * 4h Asia/Shanghai")
	d.runCommand("", "pools", "set", "ar:330100").expectExit(2).expectErrors("nothing to change")
	d.runCommand("", "pools", "set", "ar:330100", "--capacity", "10001").expectExit(1).expectErrors("capacity", "10000", "(invalid_field)")
	d.run("pools set ar:330100 --always-open --lease 5m")
	d.run("pools pause ar:330100 --reason", "the server is slow")
	d.expectOutput("pools list", "NAME  CAPACITY  HELD  TASKS WAIT  TROUBLE  LEASE  PAUSED  OPENS  CLOSES  UPDATED\nar:330100  3  0  0  5m  yes  TIME\n")
	if got := d.run("events list --kind pool.changed --limit 1"); !strings.Contains(got, "the server is slow") {
		t.Errorf("the reason of the pause is not in the log:\n%s", got)
	}
	var list []struct {
		Name   string
		Paused bool
	}
	d.run("pools resume ar:330100")
	d.decodeOutput(&list, "pools list")
	if len(list) != 1 || list[0].Name != "ar:330100" || list[0].Paused {
		t.Errorf("%+v", list)
	}
	d.run("pools delete ar:330100")
	d.runCommand("", "pools", "get", "ar:330100").expectExit(1).expectErrors("(not_found)", "dispatcher pools list")
	d.expectOutput("pools list --output json", "[]\n")
}

func TestSlotsAreShownCheckedAndReleased(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 2")
	d.run("batches create --pool p --device d-1 --device d-2 --device d-3")
	d.sendReport("d-1", `{"id":"1"}`)
	d.expectOutput("pools slots p", `
2 slots, 1 held, 0 reserved; 2 devices in line
SLOT  STATE  DEVICE  TASK  TOKEN  SINCE  LEASE UNTIL
0  held  d-1  1  1  TIME  TIME
`)
	if got := d.run("pools slots p --all"); strings.Count(got, "\n") != 4 || !strings.Contains(got, "1     free") {
		t.Errorf("--all does not show both:\n%s", got)
	}
	if got := d.run("pools grant p 1"); !strings.HasPrefix(maskVariableText(got), "alive  yes\ndevice  d-1\nslot  0\nlease  4m") {
		t.Errorf("not the grant in force:\n%s", got)
	}
	d.runCommand("", "pools", "release", "p", "0").expectExit(2).expectErrors("reason")
	d.runCommand("", "pools", "release", "p", "1", "--reason", "x").expectExit(1).expectErrors("slot 1 of pool p is free", "not_found", "dispatcher pools slots p")
	d.run("pools release p 0 --reason slow")
	if got := d.run("pools slots p"); !strings.Contains(got, "held, asked to stop") {
		t.Errorf("the pending stop is not shown:\n%s", got)
	}
	d.run("pools release p 0 --now --reason gone")
	d.expectOutput("pools slots p", "2 slots, 0 held, 0 reserved; 2 devices in line\n")
	if got := d.run("pools grant p 1"); maskVariableText(got) != "alive  no\n" {
		t.Errorf("the grant is still in force:\n%s", got)
	}
	d.sendReport("d-2", `{"id":"1"}`)
	d.expectOutput("pools history p --slot 0 --since 24h", `
SLOT  DEVICE  TASK  BATCH  TOKEN  GRANTED  ENDED  HOW
0  d-2  2  1  2  TIME  holds it
0  d-1  1  1  1  TIME  TIME  released
`)
	d.expectOutput("pools history p --slot 1", "SLOT  DEVICE  TASK  BATCH  TOKEN  GRANTED  ENDED  HOW\n")
	d.runCommand("", "pools", "history", "p", "--slot", "x").expectExit(1).expectErrors("slot: must be a slot between 0 and 9999", "invalid_field")
	d.runCommand("", "pools", "history", "p", "--since", "-1h").expectExit(2)
	if got := maskVariableText(d.run("pools series p --range 24h")); !strings.HasPrefix(got, "UNTIL  HELD  LEAST  MOST  CAPACITY  GRANTED  ENDED  LAPSED\n") || !strings.HasSuffix(got, "  1  2  2  1  0\n") {
		t.Errorf("the last day:\n%s", got)
	}
}

func TestPoolsWatchShowsChanges(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 2")
	watch := startProgram(t, d.environ, "pools", "watch", "p")
	watch.waitForOutput(t, `Z  2 +0 +0 +0\n`)
	d.run("pools set p --capacity 5")
	watch.waitForOutput(t, `Z  5 +0 +0 +0\n`)
	if code := watch.signalAndWait(t, syscall.SIGINT); code != 0 {
		t.Errorf("exit %d after Ctrl-C", code)
	}
}

const poolsFile = `pools:
  - name: ar:330100
    capacity: 60
    lease: 5m
    windows: [{cron: "0 1 * * *", duration: 4h, timezone: Asia/Shanghai}]
    limits:
      - {name: per-account, per: tags.account, algorithm: sliding, windows: [{max: 1, per_ms: 60000}, {max: 10, per_ms: 86400000}]}
      - {name: daily, per: tags.account, algorithm: calendar, period: day, timezone: Asia/Shanghai, max: 1000}
  - {name: b, capacity: 60, paused: true}
`

func TestApplyMakesPoolsAsTheFileSays(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create ar:330100 --capacity 40")
	d.writeFile("pools.yaml", poolsFile)
	want := "POOL  ACTION  CHANGES\n" +
		"ar:330100  changed  capacity 40 -> 60, limits none -> per-account 1/1m 10/24h per tags.account; daily 1000/day Asia/Shanghai per tags.account, windows none -> 0 1 * * * 4h Asia/Shanghai\n" +
		"b  created  capacity 60, paused yes\n"
	d.expectOutput("pools apply -f pools.yaml --dry-run", want)
	if got := d.run("pools list"); strings.Contains(got, "\nb ") || !strings.Contains(got, "40") {
		t.Fatalf("a dry run changed something:\n%s", got)
	}
	d.expectOutput("pools apply -f pools.yaml", want)
	again := d.runCommand(poolsFile, "pools", "apply", "-f", "-").expectExit(0).expectErrors("0 created, 0 changed, 2 unchanged")
	if maskVariableText(again.out) != "POOL  ACTION  CHANGES\n" {
		t.Errorf("the second time:\n%s", again.out)
	}
	d.run("pools set b --lease 7m --paused=false")
	d.runCommand("pools: [{name: b, capacity: 7}]", "pools", "apply", "-f", "-").expectExit(0).expectErrors("0 created, 1 changed, 0 unchanged")
	var b struct {
		Capacity int
		Paused   bool
		Lease    int `json:"lease_ms"`
	}
	if d.decodeOutput(&b, "pools get b"); b.Capacity != 7 || b.Paused || b.Lease != 420_000 {
		t.Errorf("%+v: what the file leaves out stays", b)
	}
	var changes []struct{ Pool, Action string }
	if d.decodeOutput(&changes, "pools apply -f pools.yaml --dry-run"); len(changes) != 2 || changes[0].Action != "unchanged" || changes[1].Action != "changed" {
		t.Errorf("as JSON all are there: %+v", changes)
	}
}

// A file with any mistake changes nothing, and the error contains the place of the mistake.
func TestApplyChecksAllFirst(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	for text, want := range map[string][]string{
		"pools:\n- {name: good}\n- {name: b, capcity: 3}\n":                                                                            {"line 3", "capcity"},
		"pools:\n- {name: good, capacity: 1}\n- {name: b, lease: 5}\n":                                                                 {"line 3", "\"5\"", "5m"},
		"pools:\n- {name: good, capacity: 1}\n- {name: b, capacity: 10001}\n":                                                          {"pool b", "capacity", "10000", "nothing was changed"},
		"pools:\n- {name: good, capacity: 1}\n- {name: b}\n":                                                                           {"pool b", "capacity"},
		"pools:\n- {name: good, capacity: 1}\n- {name: b, capacity: }\n":                                                               {"pool b", "capacity"},
		"pools:\n- {name: good}\n- {name: b, capacity: 1, capacity: 2}\n":                                                              {"line 3", "capacity", "already defined"},
		"pools:\n- {name: good}\n- {name: good}\n":                                                                                     {"pool good", "twice"},
		"pools:\n- {name: good, capacity: 1}\n- {name: a/b, capacity: 1}\n":                                                            {"a/b", "invalid_pool"},
		"pools:\n- {name: good, capacity: 1}\n- {capacity: 1}\n":                                                                       {"name: required"},
		"pools:\n- {name: good}\n- {name: b, paused: perhaps}\n":                                                                       {"line 3", "bool"},
		"pools:\n- {name: good, capacity: 1}\n- name: b\n  capacity: 1\n  windows: [{cron: x, duration: 1h}]\n":                        {"pool b", "windows", "cron"},
		"pools:\n- {name: good}\n- name: b\n  windows: [{cros: x}]\n":                                                                  {"line 4", "cros"},
		"pools:\n- {name: good, capacity: 1}\n- {name: b, capacity: 1, limits: [{name: n, per: device, algorithm: fixed, per_ms: 1}]}": {"pool b", "limits[0].max: must be between 1 and"},
		"pools:\n- {name: good}\n- name: b\n  limits: [{name: n, algorithm: fixed, burst: 1}]\n":                                       {"line 4", "burst"},
		"pools:\n- {name: good}\n- {name: b, limits: 7}\n":                                                                             {"line 3", "Policy"},
		"pool:\n- {name: good}\n":                  {"line 1", "pool"},
		"pools: []\n":                              {"no pools"},
		"pools:\n- good\n":                         {"line 2"},
		"pools:\n- {name: good}\n---\npools: []\n": {"document"},
		"\t": {"-"},
		"pools:\n- {name: good, x: 1}\n- {name: b, y: 2}\n":                     {"line 2", "line 3"},
		"pools: [{name: a, capacity: 1}, {name: b, capacity: 1, lease: 1ms}]\n": {"pool b", "lease_ms", "nothing was changed"},
	} {
		d.runCommand(text, "pools", "apply", "-f", "-").expectExit(1).expectErrors(want...)
	}
	d.runCommand("pools:\n- {name: b}\n", "pools", "apply", "--dry-run", "-f", "-").expectExit(1).expectErrors("pool b", "capacity")
	d.expectOutput("pools list --output json", "[]\n")
	d.runCommand("", "pools", "apply", "-f", "none.yaml").expectExit(2).expectErrors("none.yaml")
}

func TestApplyTakesMoreThanAPage(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: 1,500 pools, and the client's tests follow pages daily; make test-long runs it")
	}
	d := newCommandRunner(t)
	var file strings.Builder
	file.WriteString("pools:\n")
	for i := range 1500 { // more than one page
		fmt.Fprintf(&file, "- {name: p-%04d, capacity: %d}\n", i, i)
	}
	d.runCommand(file.String(), "pools", "apply", "-f", "-").expectExit(0).expectErrors("1500 created, 0 changed, 0 unchanged")
	d.runCommand(file.String(), "pools", "apply", "-f", "-").expectExit(0).expectErrors("0 created, 0 changed, 1500 unchanged")
	if got := d.run("pools list --limit 0"); strings.Count(got, "\n") != 1501 {
		t.Errorf("%d lines", strings.Count(got, "\n"))
	}
	short := d.runCommand("", "pools", "list", "--limit", "1000").expectExit(0).expectErrors("There are more")
	if strings.Count(short.out, "\n") != 1001 {
		t.Errorf("%d lines", strings.Count(short.out, "\n"))
	}
}

func TestExportedPoolsApplyUnchanged(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.runCommand(poolsFile, "pools", "apply", "-f", "-").expectExit(0)
	d.run("pools create a --lease 2500ms --capacity 0")
	file := d.run("pools export --format yaml")
	d.runCommand(file, "pools", "apply", "-f", "-").expectExit(0).expectErrors("0 created, 0 changed, 3 unchanged")
	other := newCommandRunner(t)
	other.runCommand(file, "pools", "apply", "-f", "-").expectExit(0).expectErrors("3 created, 0 changed, 0 unchanged")
	if got := other.run("pools export --format yaml"); got != file {
		t.Errorf("%s\nwant\n%s", got, file)
	}
}
