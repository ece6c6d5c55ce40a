package app

import (
	"errors"
	"slices"
	"testing"

	"github.com/fleetslots/dispatcher/dispatcher"
)

// TestMemoryLimitLeavesRoom checks the memory limit that the program sets: 1.25 times the memory of heap and stacks, plus memoryOverhead, and at
// least memoryGoal. It also checks that the heap may grow fivefold only within memoryGoal.
func TestMemoryLimitLeavesRoom(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for used, want := range map[int64]int64{0: 160, 30: 160, 100: 160, 104: 162, 260: 357, 1000: 1282} {
		if got := memoryLimit(used * mib); got != want*mib {
			t.Errorf("%d MiB used: a limit of %d MiB, want %d", used, got/mib, want)
		}
	}
	for live, want := range map[int64]int{0: 400, 32: 400, 33: 100, 300: 100} {
		if got := gcPercent(live * mib); got != want {
			t.Errorf("%d MiB of live data: %d percent, want %d", live, got, want)
		}
	}
	if err := errors.Join(adjustMemoryLimit(t.Context()), adjustGarbageCollection(t.Context())); err != nil {
		t.Error(err)
	}
}

// TestDevSetsNoMemoryLimit checks that only the embedded mode (`dev`) runs without the pass that limits the memory. A simulated fleet of 5,000
// devices needs more memory than the limit allows, so garbage collection would take half of the processor time.
func TestDevSetsNoMemoryLimit(t *testing.T) {
	t.Parallel()
	app := &App{dispatcher: dispatcher.New(dispatcher.Config{})}
	for _, isDev := range []bool{false, true} {
		passes := app.newPasses(backends{dev: isDev}).all
		if limited := slices.ContainsFunc(passes, func(p *pass) bool { return p.name == "memory" }); limited == isDev {
			t.Errorf("dev is %v: has the pass \"memory\": %v", isDev, limited)
		}
	}
}
