package main

import (
	"strings"
	"testing"
)

const onePerDayPolicy = `[{"name":"one","per":"device","algorithm":"sliding","windows":[{"max":1,"per_ms":86400000}]}]`

func TestLimitsFromTheShell(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.writeFile("limits.json", onePerDayPolicy)
	if got := maskVariableText(d.run("pools create p --capacity 60 --limits @limits.json")); !strings.Contains(got, "\nlimits  one 1/24h per device\n") {
		t.Error(got)
	}
	d.run("batches create --pool p --device d-1 --device d-1 --limits", onePerDayPolicy)
	d.sendReport("d-1", `{"id":"1"}`)
	d.endTask("d-1", "succeeded")
	if reply := d.sendReport("d-1", `{"id":"2"}`); reply["reason"] != "limited" {
		t.Errorf("%v", reply)
	}
	if got := maskVariableText(d.run("pools limited p")); !strings.HasPrefix(got, "POLICY  SUBJECT  TIMES\none  device=d-1  ") {
		t.Error(got)
	}
	var top struct{ Limited []struct{ Policy string } }
	if d.decodeOutput(&top, "pools limited p --limit 1"); len(top.Limited) != 1 {
		t.Errorf("%+v", top)
	}
	if got := d.run("tasks why 2"); !strings.Contains(got, "policy one of") || !strings.Contains(got, "dispatcher pools set p --limits") {
		t.Error(got)
	}
	for _, thing := range []string{"pools set p", "batches set 1"} {
		if got := d.run(thing + " --no-limits"); strings.Contains(got, "limits") {
			t.Error(got)
		}
		d.runCommand("", append(strings.Fields(thing), "--limits", "{")...).expectExit(2).expectErrors("--limits: not JSON")
		d.runCommand("", append(strings.Fields(thing), "--limits", "@none")...).expectExit(2).expectErrors("--limits", "none")
		d.runCommand("", append(strings.Fields(thing), "--limits", `[{"name":"n"}]`)...).expectExit(1).expectErrors("algorithm")
		d.runCommand("", append(strings.Fields(thing), "--limits", "[]", "--no-limits")...).expectExit(2).expectErrors("no-limits")
	}
	if reply := d.sendReport("d-1", `{"id":"3"}`); reply["reason"] != "granted" {
		t.Errorf("%v", reply)
	}
}

func TestUsageFromTheShell(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 60 --limits", onePerDayPolicy)
	d.run("profiles put solar --limits", strings.Replace(onePerDayPolicy, `"max":1`, `"max":7`, 1))
	d.run("devices create d-1 --profile solar")
	d.run("batches create --pool p --device d-1 --device d-2")
	d.endTask("d-1", "succeeded")
	d.endTask("d-2", "succeeded")
	const line = "one  device=d-1  1/1  1 per 24h0m0s  pool p  "
	if got := maskVariableText(d.run("pools usage p")); !strings.HasPrefix(got, "POLICY  SUBJECT  USED  ALLOWED  OF  RESETS IN\n"+line) || strings.Count(got, "\n") != 3 {
		t.Error(got)
	}
	if got := maskVariableText(d.run("pools usage p --device d-1")); !strings.Contains(got, line) || !strings.Contains(got, "1/7  7 per 24h0m0s  profile solar  ") {
		t.Error(got)
	}
	var now struct{ Highest []struct{ Used int } }
	if d.decodeOutput(&now, "pools usage p --limit 1"); len(now.Highest) != 1 || now.Highest[0].Used != 1 {
		t.Errorf("%+v", now)
	}
}

func TestSuppressedTasksFromTheShell(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create p --capacity 60")
	drop := strings.Replace(onePerDayPolicy, `"name":`, `"on_limited":"drop","name":`, 1)
	d.run("batches create --pool p --device d-1 --device d-1 --limits", drop)
	if got := maskVariableText(d.run("batches get 1")); !strings.Contains(got, "\nlimits  one 1/24h per device drop\n") {
		t.Error(got)
	}
	d.endTask("d-1", "succeeded")
	if reply := d.sendReport("d-1", `{"id":"2"}`); reply["reason"] != "none" {
		t.Errorf("%v", reply)
	}
	for line, want := range map[string]string{
		"batches get 1":                            "1 succeeded, 1 suppressed",
		"batches watch 1":                          "1 suppressed",
		"tasks list --state suppressed":            "suppressed",
		"tasks get 2":                              "policy one of batch 1 allows 1 per 24h0m0s for device=d-1",
		"tasks why 2":                              "(suppressed)",
		"batches results 1 --csv":                  "2,d-1,suppressed,",
		"events list --kind task.suppressed":       "policy one of batch 1",
		"tasks retry --state suppressed --dry-run": "1 task",
	} {
		if got := d.run(line); !strings.Contains(got, want) {
			t.Errorf("%s: no %q in\n%s", line, want, got)
		}
	}
	d.run("batches set 1 --no-limits")
	d.run("tasks retry 2")
	d.endTask("d-1", "succeeded")
}

func TestProfilesFromTheShell(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	if got := maskVariableText(d.run("profiles put solar --limits", onePerDayPolicy)); !strings.HasPrefix(got, "name  solar\nlimits  one 1/24h per device\nmetadata_only  no\nversion  1\n") {
		t.Error(got)
	}
	d.expectOutput("profiles list", "NAME  LIMITS  UPDATED\nsolar  one 1/24h per device  TIME\n")
	d.run("devices create d-1 --profile solar")
	d.run("devices create d-2")
	var list []struct{ ID, Profile string }
	if d.decodeOutput(&list, "devices list --profile solar"); len(list) != 1 || list[0].ID != "d-1" || list[0].Profile != "solar" {
		t.Errorf("%+v", list)
	}
	d.runCommand("", "profiles", "delete", "solar").expectExit(1).expectErrors("in_use")
	d.runCommand("", "devices", "set", "d-2", "--profile", "wind").expectExit(1).expectErrors("unknown_profile")
	d.run("devices set d-2 --profile solar")
	for _, id := range []string{"d-1", "d-2"} {
		if got := d.run("devices set " + id + " --no-profile"); strings.Contains(got, "solar") {
			t.Error(got)
		}
	}
	d.runCommand("", "profiles", "put", "solar").expectExit(2).expectErrors("limits")
	if got := d.run("profiles put solar --no-limits --metadata-only"); !strings.Contains(got, "metadata_only  yes") {
		t.Error(got)
	}
	if got := d.run("profiles put solar --no-limits"); !strings.Contains(got, "metadata_only  no") {
		t.Error(got)
	}
	d.run("profiles delete solar")
	d.runCommand("", "profiles", "get", "solar").expectExit(1).expectErrors("not_found")
	d.expectOutput("profiles list --output json", "[]\n")
}

func TestPoliciesThatNameNothingAreWarnedOf(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("devices create d-1 --tag account=north")
	for _, line := range []string{"pools create p --capacity 1 --limits", "pools set p --limits", "profiles put x --limits", "batches create --pool p --device d-1 --dry-run --limits"} {
		args := append(strings.Fields(line), `[{"name":"l","per":"tags.acount","algorithm":"fixed","max":1,"per_ms":1000}]`)
		d.runCommand("", args...).expectExit(0).expectErrors(`Warning: limits: no device has the tag "acount" (looked at: 1)`)
	}
	file := `pools: [{name: q, capacity: 1, limits: [{name: l, per: tags.acount, algorithm: fixed, max: 1, per_ms: 1000}]}]`
	for range 2 { // a dry run creates nothing
		d.runCommand(file, "pools", "apply", "--dry-run", "-f", "-").expectExit(0).expectErrors(`Warning: pool q: limits: no device has the tag "acount" (looked at: 1)`, "1 created")
	}
	d.runCommand(strings.ReplaceAll(file, "max: 1", "max: 0"), "pools", "apply", "--dry-run", "-f", "-").expectExit(1).expectErrors("pool q", "limits[0].max")
	d.runCommand(file, "pools", "apply", "-f", "-").expectExit(0).expectErrors(`Warning: pool q: limits: no device has the tag "acount" (looked at: 1)`, "1 created")
	if again := d.runCommand(file, "pools", "apply", "-f", "-").expectExit(0).expectErrors("1 unchanged"); strings.Contains(again.errText, "Warning") {
		t.Errorf("a pool that stays as it is: %s", again.errText)
	}
}

func TestLimitSetsFromTheShell(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	const policies = `[{"name":"per-phone","per":"facts.phone","algorithm":"sliding","windows":[{"max":2,"per_ms":3600000}]}]`
	if got := maskVariableText(d.run("limits put sms --limits", policies)); !strings.HasPrefix(got, "name  sms\nlimits  per-phone 2/1h per facts.phone\nversion  1\n") {
		t.Error(got)
	}
	d.expectOutput("limits list", "NAME  LIMITS  UPDATED\nsms  per-phone 2/1h per facts.phone  TIME\n")
	take := strings.Fields("limits take sms --fact phone=+49 --id m-1 --cost 2")
	d.runCommand("", take...).expectExit(0).expectErrors("")
	if got := d.runCommand("", take...).expectExit(0).out; !strings.Contains(got, "repeated") {
		t.Errorf("sent again: %s", got)
	}
	d.runCommand("", "limits", "take", "sms", "--fact", "phone=+49").expectExit(1).expectErrors("refused by policy per-phone; allowed in")
	d.runCommand("", "limits", "peek", "sms", "--fact", "phone=+50").expectExit(0)
	d.expectOutput("limits return sms --fact phone=+49 --id m-1 --cost 1", "returned  1\n")
	var used struct{ Usage, Highest []struct{ Used int } }
	if d.decodeOutput(&used, "limits usage sms --fact phone=+49"); len(used.Usage) != 1 || used.Usage[0].Used != 1 {
		t.Errorf("%+v", used)
	}
	if d.decodeOutput(&used, "limits usage sms --limit 3"); len(used.Highest) != 1 || used.Highest[0].Used != 1 {
		t.Errorf("%+v", used)
	}
	var taken struct{ Allowed bool }
	if d.decodeOutput(&taken, "limits take sms --fact phone=+49"); !taken.Allowed {
		t.Errorf("%+v", taken)
	}
	d.runCommand("", "limits", "take", "sms", "--fact", "phone").expectExit(2).expectErrors("--fact phone: must be NAME=VALUE")
	d.runCommand("", "limits", "take", "sms", "--cost", "0").expectExit(2).expectErrors("--cost: must be between 1 and 1000")
	d.runCommand("", "limits", "return", "sms").expectExit(2).expectErrors("id")
	d.runCommand("", "limits", "put", "sms", "--limits", `[{"name":"n","per":"device","algorithm":"fixed","max":1,"per_ms":1}]`).expectExit(1).expectErrors("limits[0].per", "facts.NAME")
	d.run("limits delete sms")
	d.runCommand("", "limits", "get", "sms").expectExit(1).expectErrors("not_found")
}
