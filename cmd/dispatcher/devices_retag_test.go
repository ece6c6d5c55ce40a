package main

import "testing"

func TestDevicesAreRetagged(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for _, device := range []string{"a-1", "a-2"} {
		d.run("devices create " + device + " --tag site=berlin,old=1")
	}
	d.run("devices create b-1 --tag site=paris")
	d.prints("devices retag --where site:berlin --set model:x2 --unset old --dry-run", "\n2 devices would be retagged\n")
	d.try("", "devices", "retag", "--where", "site:berlin", "--set", "model:x2").exit(2).says("--yes")
	d.prints("devices retag --where site:berlin --set model:x2 --unset old --yes", "\n2 devices retagged\n")
	var list []struct{ Tags map[string]string }
	d.read(&list, "devices list --tag model=x2")
	if len(list) != 2 || len(list[0].Tags) != 2 {
		t.Errorf("%+v", list)
	}
	d.try("", "devices", "retag", "--set", "a:b").exit(2)
	d.try("", "devices", "retag", "--prefix", "a", "--set", "ab").exit(2).says("name:value")
}
