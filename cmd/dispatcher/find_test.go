package main

import "testing"

func TestFind(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	d.run("pools create solar-1 --capacity 2")
	d.run("pools create solar-2 --capacity 3")
	d.run("pools create empty --capacity 1")
	d.run("devices create solar-7 --tag site=berlin")
	d.run("batches create --pool solar-2 --name night --tag site=berlin")
	d.expectOutput("find solar", `
KIND  ID  BY  TEXT
pool  solar-1  name  0 of 2 held, tasks wait: 0
pool  solar-2  name  0 of 3 held, tasks wait: 1
device  solar-7  id  site:berlin
`)
	d.expectOutput("find 1", `
KIND  ID  BY  TEXT
task  1  exactly  pending
batch  1  exactly  night
pool  solar-1  name  0 of 2 held, tasks wait: 0
`)
	// An object that is found in two ways is listed once.
	d.expectOutput("find solar-7", `
KIND  ID  BY  TEXT
device  solar-7  exactly  site:berlin
`)
	d.expectOutput("find solar-1", `
KIND  ID  BY  TEXT
pool  solar-1  exactly  2 slots
`)
	d.runCommand("", "find").expectExit(2)
	d.runCommand("", "find", "a", "b").expectExit(2)
	d.runCommand("", "find", " ").expectExit(1).expectErrors("q", "invalid_field")
	var found struct {
		Tagged struct{ Hits []struct{ ID string } }
	}
	d.decodeOutput(&found, "find site:berlin")
	if len(found.Tagged.Hits) != 1 || found.Tagged.Hits[0].ID != "solar-7" {
		t.Errorf("%+v", found)
	}
	d.run("pools pause solar-2")
	var list []struct{ Name string }
	for flags, want := range map[string]string{"--sort trouble": "solar-2", "--only-trouble": "solar-2", "--name AR-1": "solar-1", "--sort waiting --name solar": "solar-2"} {
		if d.decodeOutput(&list, "pools list "+flags); len(list) == 0 || list[0].Name != want {
			t.Errorf("pools list %s: %+v", flags, list)
		}
	}
	d.decodeOutput(&list, "batches list --name NIG")
	if len(list) != 1 {
		t.Errorf("batches: %+v", list)
	}
	d.decodeOutput(&list, "devices list --part ar-7")
	if len(list) != 1 {
		t.Errorf("devices: %+v", list)
	}
	d.runCommand("", "pools", "list", "--sort", "size").expectExit(1).expectErrors("sort", "invalid_field")
	if got := d.run("pools export --format yaml --name empty"); got == "" || len(got) > 200 {
		t.Errorf("one pool as YAML: %s", got)
	}
}
