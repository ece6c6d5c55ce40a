package dispatcher

import (
	"testing"

	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// A device has tasks in many batches. The semaphore gets the first task of each batch. If there are more batches than one request may
// contain, batches are drawn at random. So each batch must be tried after some reports.
func TestEachBatchOfADeviceIsTried(t *testing.T) {
	t.Parallel()
	const batches = slots.MaxWants + 50
	var open []store.Candidate
	for batch := range int64(batches) {
		for n := range int64(3) {
			open = append(open, store.Candidate{Batch: batch, Task: 10*batch + n, Priority: int(n % 2)})
		}
	}
	draw := 0.0
	jitter := func() float64 { draw += 0.618; draw -= float64(int(draw)); return draw }
	tried := map[int64]bool{}
	for range 100 {
		firsts := drawFirstTaskPerBatch(open, jitter)
		if len(firsts) != slots.MaxWants {
			t.Fatalf("%d tasks, want %d", len(firsts), slots.MaxWants)
		}
		seen := map[int64]bool{}
		for _, c := range firsts {
			if c.Task != 10*c.Batch+1 || seen[c.Batch] {
				t.Fatalf("%+v: want the one of the highest priority, once", c)
			}
			seen[c.Batch], tried[c.Batch] = true, true
		}
	}
	if len(tried) != batches {
		t.Errorf("%d of %d batches were tried", len(tried), batches)
	}
	if few := drawFirstTaskPerBatch(open[:6], jitter); len(few) != 2 {
		t.Errorf("of two batches: %+v", few)
	}
}
