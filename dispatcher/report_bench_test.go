package dispatcher_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
)

// BenchmarkReport measures reports on real servers, one after the other: of a device without work, of a device in a
// full pool, and of a device that runs one task from grant to result (two reports).
func BenchmarkReport(b *testing.B) {
	bench := newServerBench(b)
	bench.createPool("full", 0, minute)
	bench.createPool("open", 60, minute)
	bench.createBatch("full", nil, "refused")
	b.Run("none", func(b *testing.B) {
		for b.Loop() {
			bench.sendReport("idle", `{"id":"x"}`)
		}
	})
	b.Run("full", func(b *testing.B) {
		for b.Loop() {
			bench.sendReport("refused", `{"id":"x"}`)
		}
	})
	b.Run("grant+result", func(b *testing.B) {
		names := make([]string, 20_000)
		for i := range names {
			names[i] = fmt.Sprintf("d%d", i)
		}
		bench.createBatch("open", nil, names...)
		n := 0
		for b.Loop() {
			name := names[n%len(names)]
			n++
			if n%len(names) == 0 {
				bench.createBatch("open", nil, names...)
			}
			bench.sendResult(name, bench.expectGrant(name), "succeeded", `,"output":{"down_mbps":94.1}`, devices.OutcomeRecorded)
		}
	})
}

// BenchmarkReportsAtOnce measures 60 reports that are sent at the same time, until the last one has its grant. Reports
// arrive in this way when a batch was queued and its first devices were woken. The benchmark compares separate calls of
// the stores with calls that reports share.
func BenchmarkReportsAtOnce(b *testing.B) {
	const concurrentReports = 60
	for _, alone := range []bool{true, false} {
		b.Run(map[bool]string{true: "each alone", false: "together"}[alone], func(b *testing.B) {
			bench := newServerBench(b)
			if alone {
				bench.DisableCoalescing()
			}
			bench.createPool("a", concurrentReports, minute)
			names := make([]string, concurrentReports)
			for i := range names {
				names[i] = fmt.Sprintf("d%d", i)
			}
			for b.Loop() {
				b.StopTimer()
				bench.createBatch("a", nil, names...)
				b.StartTimer()
				tasks := bench.grantConcurrently(names)
				b.StopTimer()
				for i, task := range tasks {
					bench.sendResult(names[i], task, "succeeded", "", devices.OutcomeRecorded)
				}
				b.StartTimer()
			}
		})
	}
}

func (b *testBench) grantConcurrently(names []string) []devices.Task {
	tasks := make([]devices.Task, len(names))
	var wait sync.WaitGroup
	for i, name := range names {
		wait.Go(func() { tasks[i] = b.expectGrant(name) })
	}
	wait.Wait()
	return tasks
}
