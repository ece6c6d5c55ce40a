package cost

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

var update = flag.Bool("update", false, "write what is counted into testdata/cost.txt") //nolint:gochecknoglobals // a flag of the test

const costFile = "testdata/cost.txt"

// TestCost counts the cost of a fixed sequence of reports, one after the other, so that no requests are sent
// together by chance. The clock of the dispatcher does not advance, so no cached value expires.
func TestCost(t *testing.T) {
	t.Parallel()
	p := newTestDispatcher(t)
	p.createPool("a")
	idle, devices := numberedNames("idle", 200), numberedNames("d", 200)
	var now []figure
	count := func(name string, n int, do func(i int)) {
		t.Helper()
		now = append(now, p.measureCost(name, n, do)...)
	}
	p.warmUp()
	count("first report", len(idle), func(i int) { p.reportIdle(idle[i]) })
	count("idle report", len(idle), func(i int) { p.reportIdle(idle[i]) })
	p.createBatch("a", devices)
	for _, d := range devices {
		p.sendFirstReport(d)
	}
	count("cycle", len(devices), func(i int) { p.runCycle(devices[i]) })
	waiting := numberedNames("w", 200)
	p.fillPool("full", waiting)
	count("waiting report", len(waiting), func(i int) { p.reportWaiting(waiting[i]) })
	for _, names := range [][]string{idle, waiting} {
		for _, name := range names { // the first poll over another wire reads the ledger
			p.pollDDI(name)
		}
	}
	p.actionReads = 0
	count("idle poll over DDI", len(idle), func(i int) { p.pollDDI(idle[i]) })
	count("waiting poll over DDI", len(waiting), func(i int) { p.pollDDI(waiting[i]) })
	if most := (len(idle) + len(waiting)) / 100; p.actionReads > most { // each 256th poll is audited
		t.Errorf("%d reads of actions for polls that Redis answers, want at most %d", p.actionReads, most)
	}
	thousand := numberedNames("b", 1000)
	count("batch of 1,000", 1, func(int) { p.createBatch("a", thousand) })
	if *update {
		must.Succeed(t, os.WriteFile(costFile, formatFigures(now), 0o600))
		return
	}
	before, err := os.ReadFile(costFile)
	must.Succeed(t, err)
	moved := compareFigures(parseFigures(t, string(before)), now)
	for _, line := range moved {
		t.Error(line)
	}
	if len(moved) > 0 {
		t.Errorf("what was counted:\n%s\nIf it is meant: go test ./internal/test/cost -update, and say why in the commit.", p.callCounts.String())
	}
}

func numberedNames(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%s-%03d", prefix, i)
	}
	return all
}
