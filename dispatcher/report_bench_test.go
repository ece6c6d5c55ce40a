package dispatcher_test

import (
	"fmt"
	"testing"

	"github.com/fleetslots/dispatcher/devices"
)

// BenchmarkReport measures one report after another on real servers: what a
// device costs that has nothing to do, that meets a full pool, and that runs a
// task from grant to result (two reports).
func BenchmarkReport(b *testing.B) {
	bench := servers(b)
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
