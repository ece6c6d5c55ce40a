package app

import "testing"

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
	if err := adjustMemoryLimit(t.Context()); err != nil {
		t.Error(err)
	}
}
