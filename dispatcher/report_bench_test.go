package dispatcher_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
)

// BenchmarkReport measures sequential reports on real servers: of a device without work, of a device that
// meets a full pool, and of a device that runs a task from grant to result (two reports).
func BenchmarkReport(b *testing.B) {
	bench := onServers(b)
	bench.pool("full", 0, minute)
	bench.pool("open", 60, minute)
	bench.batch("full", nil, "refused")
	b.Run("none", func(b *testing.B) {
		for b.Loop() {
			bench.report("idle", `{"id":"x"}`)
		}
	})
	b.Run("full", func(b *testing.B) {
		for b.Loop() {
			bench.report("refused", `{"id":"x"}`)
		}
	})
	b.Run("grant+result", func(b *testing.B) {
		names := make([]string, 20_000)
		for i := range names {
			names[i] = fmt.Sprintf("d%d", i)
		}
		bench.batch("open", nil, names...)
		n := 0
		for b.Loop() {
			name := names[n%len(names)]
			n++
			if n%len(names) == 0 {
				bench.batch("open", nil, names...)
			}
			bench.ended(name, bench.granted(name), "succeeded", `,"output":{"down_mbps":94.1}`, devices.OutcomeRecorded)
		}
	})
}

// BenchmarkReportsAtOnce measures 60 concurrent reports until the last one is granted, as after a batch was
// queued and its first devices were woken. It compares separate calls with coalesced calls.
func BenchmarkReportsAtOnce(b *testing.B) {
	const together = 60
	for _, alone := range []bool{true, false} {
		b.Run(map[bool]string{true: "each alone", false: "together"}[alone], func(b *testing.B) {
			bench := onServers(b)
			if alone {
				bench.Alone()
			}
			bench.pool("a", together, minute)
			names := make([]string, together)
			for i := range names {
				names[i] = fmt.Sprintf("d%d", i)
			}
			for b.Loop() {
				b.StopTimer()
				bench.batch("a", nil, names...)
				b.StartTimer()
				tasks := bench.grantedAtOnce(names)
				b.StopTimer()
				for i, task := range tasks {
					bench.ended(names[i], task, "succeeded", "", devices.OutcomeRecorded)
				}
				b.StartTimer()
			}
		})
	}
}

func (b *bench) grantedAtOnce(names []string) []devices.Task {
	tasks := make([]devices.Task, len(names))
	var wait sync.WaitGroup
	for i, name := range names {
		wait.Go(func() { tasks[i] = b.granted(name) })
	}
	wait.Wait()
	return tasks
}
