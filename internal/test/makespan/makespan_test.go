package makespan

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/internal/simulator"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// These flags are set by `make bench-makespan`.
var (
	fullSize   = flag.Bool("whole", false, "measure: the table at its full size")                                          //nolint:gochecknoglobals // a flag of the test
	titleWords = flag.String("rows", "", "only rows whose title has one of these words, with | between; empty: every row") //nolint:gochecknoglobals // a flag of the test
)

// scale is the size of a measurement: how many devices, slots and tasks it uses.
type scale struct {
	slots        int
	work, period time.Duration
	restTime     time.Duration // time for the dispatcher to write the last-seen times of the devices
}

// result is the result of a row that has completed.
type result struct {
	row
	scale
	simulator.Summary
	coresUsed cores
}

// TestMakespan prints the table of how long batches take. It measures only with -whole. Without -whole it tests the
// harness, at a size that is too small for meaningful times.
func TestMakespan(t *testing.T) { //nolint:tparallel // rows run one after the other: they are measured
	t.Parallel()
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	size, rows := scale{capacity, work, period, restTime}, selectRows(tableRows(), *titleWords)
	if !*fullSize {
		size = scale{slots: 5, work: 50 * time.Millisecond, period: time.Second}
		rows = []row{
			{name: "report-and-hope", baseline: true, via: simulator.ViaPeriodic, tasks: 30},
			{name: "all kinds", via: mixedVia + "," + simulator.ViaPeriodic, tasks: 30, roundTrip: 20 * time.Millisecond},
		}
	}
	var page bytes.Buffer
	out := tableWriter{&page, *fullSize}
	out.writeHeader()
	for _, r := range rows {
		done, ok := measure(ctx, t, r, size)
		if !ok {
			return // the row has already logged the failure, or was skipped
		}
		out.writeRow(done)
	}
	if got := len(parseTable(t, page.String())); got != len(rows) {
		t.Errorf("the table has %d rows, want %d:\n%s", got, len(rows), page.String())
	}
}

// measure runs a row on servers that no other row uses. ok is false if a promise was broken or the row did not
// complete.
func measure(ctx context.Context, t *testing.T, r row, size scale) (done result, ok bool) {
	t.Helper()
	size.slots, size.work = cmp.Or(r.slotsOverride, size.slots), cmp.Or(r.workOverride, size.work)
	done.row, done.scale = r, size
	t.Run(r.title(), func(t *testing.T) {
		p := newRowServers(t, r, size.period)
		config := p.simulatorConfig(r, size)
		var before cpuTimes
		config.OnBegan = func() { before = p.readCPUTimes() }
		config.OnEnded = func() { done.coresUsed = p.readCPUTimes().coresSince(before) }
		var err error
		if done.Summary, err = simulator.Run(ctx, config, nil); err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		_ = done.Print(&said)
		t.Logf("%s\n%s", r.title(), said.String())
		must.Succeed(t, errors.Join(done.Err(), context.Cause(ctx)))
		ok = true
	})
	return done, ok
}

// TestRowsAreChosenByWordsOfTheirTitles checks the flag -rows: it selects rows by words of their titles.
func TestRowsAreChosenByWordsOfTheirTitles(t *testing.T) {
	t.Parallel()
	all := tableRows()
	for words, want := range map[string]int{
		"": len(all), "push": 7, "long poll": 5, "hope": 2, "3000": 9, "200ms away|1s away": 4, "nobody": 0,
	} {
		if got := len(selectRows(all, words)); got != want {
			t.Errorf("%q chooses %d rows, want %d", words, got, want)
		}
	}
}

// TestLoadIsOfTheseProcesses checks the measured processor times: a busy loop in this process increases them.
func TestLoadIsOfTheseProcesses(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("there is no /proc")
	}
	p := &rowServers{pids: map[string]int{"this one": os.Getpid()}}
	before := p.readCPUTimes()
	deadline := time.After(time.Minute)
	for {
		if now := p.readCPUTimes(); now.fleet > before.fleet && now.servers > before.servers && now.machine > before.machine {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("a busy process uses nothing: %+v", p.readCPUTimes().coresSince(before))
		default:
		}
	}
}
