package app

import "testing"

// The limit is the live heap plus a quarter, plus all memory outside the heap.
func TestMemoryLimitLeavesRoom(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for live, want := range map[int64]int64{0: 384, 30: 384, 200: 384, 240: 384, 260: 389, 1000: 1314} {
		if got := memoryLimit(live * mib); got != want*mib {
			t.Errorf("%d MiB live: a limit of %d MiB, want %d", live, got/mib, want)
		}
	}
	if err := keepMemory(t.Context()); err != nil {
		t.Error(err)
	}
}
