package main

import "testing"

func TestDevicesAreRetagged(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	for _, device := range []string{"a-1", "a-2"} {
		d.run("devices create " + device + " --tag site=berlin,old=1")
	}
	d.run("devices create b-1 --tag site=paris")
	d.expectOutput("devices retag --where site:berlin --set model:x2 --unset old --dry-run", "\n2 devices would be retagged\n")
	d.runCommand("", "devices", "retag", "--where", "site:berlin", "--set", "model:x2").expectExit(2).expectErrors("--yes")
	d.expectOutput("devices retag --where site:berlin --set model:x2 --unset old --yes", "\n2 devices retagged\n")
	var list []struct{ Tags map[string]string }
	d.decodeOutput(&list, "devices list --tag model=x2")
	if len(list) != 2 || len(list[0].Tags) != 2 {
		t.Errorf("%+v", list)
	}
	d.runCommand("", "devices", "retag", "--set", "a:b").expectExit(2)
	d.runCommand("", "devices", "retag", "--prefix", "a", "--set", "ab").expectExit(2).expectErrors("name:value")
}
