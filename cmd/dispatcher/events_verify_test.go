package main

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// TestEventsVerify changes the log of events directly in the database, and checks that `events verify` finds the change.
func TestEventsVerify(t *testing.T) {
	t.Parallel()
	d := newCommandRunner(t)
	if first := d.run("events verify -o json"); !strings.Contains(first, `"blocks": 0,`) || !strings.Contains(first, `"faults": []`) {
		t.Errorf("a new ledger: %s", first)
	}
	d.run("pools create p --capacity 1")
	d.runCommand(strings.Repeat("{\"device\":\"d-1\"}\n", 1000), "batches", "create", "--pool", "p", "-f", "-", "--format", "ndjson").expectExit(0)
	d.run("batches cancel 1 --yes") // 1,000 events, one for each task
	d.eventually("a block is sealed", func() bool { return strings.Contains(d.run("events verify -o json"), `"blocks": 1,`) })
	d.runCommand("", "events", "verify").expectExit(0).expectErrors("Compared 1000 events in 1 block. Not sealed yet: ", "The first block was sealed at 20")
	kept := d.writeFile("kept.json", d.run("events verify -o json"))
	d.run("events verify --since-seal " + kept)

	db, err := sql.Open("sqlite", filepath.Join(d.data, "ledger.db")+"?_pragma=busy_timeout(5000)")
	must.Succeed(t, err)
	defer db.Close()
	change := func(statement string) {
		t.Helper()
		_, err := db.ExecContext(t.Context(), statement)
		must.Succeed(t, err)
	}
	verify := func(flags, problem, count string) {
		t.Helper()
		result := d.runCommand("", strings.Fields("events verify "+flags)...).expectExit(1).expectErrors("the log of events was changed: " + count)
		if !strings.Contains(result.out, problem) {
			t.Errorf("events verify %s: no %q in %s", flags, problem, result.out)
		}
	}
	change(`UPDATE events SET actor = 'nobody' WHERE id = 500`)
	verify("", "1 to 1000 ", "1 fault")
	verify("", "an event or the seal was changed", "1 fault")
	verify("--since-seal "+kept, "an event or the seal was changed", "1 fault")
	change(`DELETE FROM events WHERE id IN (500, 501)`)
	verify("-o json", `"problem": "2 of 1000 events are missing"`, "1 fault")
	change(`UPDATE event_seals SET hash = '00'`)
	verify("--since-seal "+kept, "the ledger does not have this seal any more", "") // more than one fault
	change(`DELETE FROM event_seals`)
	for _, flags := range []string{"", " --since-seal " + kept} {
		d.runCommand("", strings.Fields("events verify"+flags)...).expectExit(1).expectErrors("the ledger does not have these seals any more")
	}

	d.runCommand("", "events", "verify", "--since-seal", "missing").expectExit(2).expectErrors("--since-seal: ")
	d.runCommand("", "events", "verify", "--since-seal", d.writeFile("empty.json", "{}")).expectExit(2).expectErrors("has no last_seal")
}
