package bench

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"
)

// These flags are set by `make bench-load`.
var (
	fullSize   = flag.Bool("whole", false, "measure: the table at its full size")                                          //nolint:gochecknoglobals // a flag of the test
	titleWords = flag.String("rows", "", "only rows whose title has one of these words, with | between; empty: every row") //nolint:gochecknoglobals // a flag of the test
	rounds     = flag.Int("rounds", 3, "how often each row is measured; the table has the medians")                        //nolint:gochecknoglobals // a flag of the test
	maxSpan    = flag.Duration("span", 10*time.Second, "how long a row is measured in a round, at most")                   //nolint:gochecknoglobals // a flag of the test
	binary     = flag.String("binary", "", "the dispatcher that is measured; built if empty")                              //nolint:gochecknoglobals // a flag of the test
)

// scale is the size of a measurement: how many connections, devices and tasks it uses.
type scale struct {
	rounds             int
	span               time.Duration
	conns              int // keep-alive connections
	callers            int // goroutines that call the handler of reports in this process
	queuedTasks        int // tasks that are queued just before a row is measured
	mqttDevices        int // devices that are connected to the broker
	manyTasks          int // tasks queued in the row "1,000,000 queued"
	pools              int // pools in the row "3,000 pools"
	tasksPerDevice     int // tasks of each device in the row "500 tasks a device"
	maxCyclesPerSecond int // a rate that no row reaches; it determines how many devices and jobs are enough
}

func measurementScale() scale {
	if *fullSize {
		return scale{
			rounds: *rounds, span: *maxSpan, conns: 64, callers: 512, mqttDevices: 10_000,
			queuedTasks: 10_000, manyTasks: 1_000_000, pools: 3000, tasksPerDevice: 500, maxCyclesPerSecond: 40_000,
		}
	}
	return scale{rounds: 1, span: 100 * time.Millisecond, conns: 4, callers: 8, mqttDevices: 40, queuedTasks: 40, manyTasks: 200, pools: 5, tasksPerDevice: 10, maxCyclesPerSecond: 1000}
}

// TestLoad prints the table. Each round measures every row once, so that other work of the machine affects all rows
// alike. TestLoad measures only with -whole. Without -whole (as in `make test-long`), TestLoad only tests the harness:
// it runs a few rows, which its body selects, at a size that is too small for meaningful times.
func TestLoad(t *testing.T) { //nolint:tparallel // rows run one after the other: they are measured
	t.Parallel()
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	size, rows := measurementScale(), selectRows(allRows(), *titleWords)
	if !*fullSize && *titleWords == "" {
		rows = selectRows(rows, "half of|in process|classic|COPY|MQTT")
	}
	measured := make(map[string][]figures)
	for round := range size.rounds {
		for _, r := range rows {
			began := time.Now()
			done, ok := measure(ctx, t, r, size)
			if !ok {
				return // the row has already logged the failure, or was skipped
			}
			measured[r.title] = append(measured[r.title], done)
			printNow("round %d of %d, %s: %.0f %s/s%s (%.0f s)", round+1, size.rounds, r.title, done.perSecond(), r.unit, done.trendText(), time.Since(began).Seconds())
		}
	}
	page := markdownTable(rows, measured)
	if got := strings.Count(page, "\n"); got != len(rows)+2 {
		t.Errorf("the table has %d lines, want one for each of %d rows and two above:\n%s", got, len(rows), page)
	}
	printNow("\n%s\n%s", page, describeMachine(t))
}

// measure runs a row on servers that no other row uses. ok is false if the row failed.
func measure(ctx context.Context, t *testing.T, r row, size scale) (done figures, ok bool) {
	t.Helper()
	t.Run(r.title, func(t *testing.T) {
		done = r.measure(newTestbed(ctx, t), size)
		if ctx.Err() != nil {
			t.Fatal("interrupted")
		}
		if done.count == 0 && !*fullSize {
			t.Fatal("nothing was done")
		}
		ok = !t.Failed()
	})
	return done, ok
}

// printNow prints a line at once if -whole is set, because the whole table takes many minutes.
func printNow(format string, args ...any) {
	if *fullSize {
		_, _ = fmt.Fprintf(os.Stdout, format+"\n", args...)
	}
}
