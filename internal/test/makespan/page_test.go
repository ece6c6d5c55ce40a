package makespan

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/simulator"
)

// columns returns the columns of the table. Times are in seconds unless the column names another unit.
func columns() []string {
	return []string{
		"fleet, tasks", "bound", "ideal", "makespan", "/ bound", "/ (bound + work)", "/ ideal", "slot use",
		"empty slot-seconds: start, between, end", "handoff in the server p50, p99 (ms)", "slot left to next inside p50, p99 (ms)",
		"refused per grant", "latest after its turn", "most inside", "over limit", "cores: servers + fleet, machine",
	}
}

func (r result) rowCells() []string {
	bound, s := r.lowerBound(), r.Summary
	return []string{
		r.title(), seconds(bound), seconds(s.Ideal), seconds(s.Makespan), ratio(s.Makespan, bound), ratio(s.Makespan, bound+r.work+r.roundTrip), ratio(s.Makespan, s.Ideal),
		fmt.Sprintf("%.1f %%", 100*s.SlotUse()),
		fmt.Sprintf("%s, %s, %s", seconds(s.SlotIdle.Start), seconds(s.SlotIdle.Between), seconds(s.SlotIdle.End)),
		quantilesText(s.Handoff.Server), quantilesText(s.Handoff.Total),
		fmt.Sprintf("%.2f", s.DeniedPerGrant()), seconds(s.MaxDelay),
		fmt.Sprintf("%d of %d", s.External.HighWater, s.Capacity), fmt.Sprint(s.Breaches.OverCapacity),
		fmt.Sprintf("%.2f + %.2f, %.2f of %d", r.coresUsed.servers, r.coresUsed.fleet, r.coresUsed.machine, processorCount()),
	}
}

// lowerBound returns the shortest time that is possible if a dispatcher notifies the next device only after a slot
// was left: each visit takes its work and a round trip.
func (r result) lowerBound() time.Duration {
	return r.Bound + r.roundTrip*time.Duration(r.tasks)/time.Duration(r.slots)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f", d.Seconds()) }

func ratio(a, b time.Duration) string { return fmt.Sprintf("%.3f", float64(a)/float64(max(b, 1))) }

func quantilesText(q simulator.Quantiles) string {
	if q == (simulator.Quantiles{}) {
		return "-"
	}
	return fmt.Sprintf("%.1f, %.1f", 1000*q.P50.Seconds(), 1000*q.P99.Seconds())
}

// tableWriter writes the table. If printsLines is true, it also prints each line at once.
type tableWriter struct {
	page        *bytes.Buffer
	printsLines bool
}

func (o tableWriter) writeHeader() {
	o.writeLine(columns())
	o.writeLine(strings.Fields("--- " + strings.Repeat("---: ", len(columns())-1)))
}

func (o tableWriter) writeRow(r result) { o.writeLine(r.rowCells()) }

func (o tableWriter) writeLine(cells []string) {
	line := "| " + strings.Join(cells, " | ") + " |\n"
	o.page.WriteString(line)
	if o.printsLines {
		_, _ = os.Stdout.WriteString(line)
	}
}

// parseTable reads the table from a page. It checks that each row has all columns, and that no row exceeded the
// capacity.
func parseTable(t *testing.T, page string) (rows [][]string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(page), "\n")
	for i, line := range lines {
		cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "| "), " |"), " | ")
		if len(cells) != len(columns()) {
			t.Errorf("line %d has %d columns, want %d: %s", i+1, len(cells), len(columns()), line)
			continue
		}
		if i >= 2 {
			rows = append(rows, cells)
			if over := cells[14]; over != "0" {
				t.Errorf("%s: over the limit %s times", cells[0], over)
			}
		}
	}
	return rows
}
