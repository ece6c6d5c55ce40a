package app

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	memoryEvery = time.Second

	// memoryGoal is what the process stays at while what it needs fits. Left to itself the
	// collector lets garbage double that, and keeps what it once had.
	memoryGoal = 384 << 20

	// memoryBeside is needed beside the heap: stacks, and what the collector keeps.
	memoryBeside = 64 << 20
)

// keepMemory is a pass that has garbage collected sooner the nearer the process comes to
// memoryGoal. GOMEMLIMIT goes before it.
func keepMemory(context.Context) error {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	if metrics.Read(live); os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit(int64(live[0].Value.Uint64())))
	}
	return nil
}

// memoryLimit leaves room where more is needed, as for many connections: a limit
// closer to what is live would have the collector run all the time.
func memoryLimit(live int64) int64 { return max(memoryGoal, live*5/4+memoryBeside) }
