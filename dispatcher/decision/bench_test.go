package decision

import (
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/store"
)

// BenchmarkDecide measures how long Decide takes for a device with twenty open tasks.
func BenchmarkDecide(b *testing.B) {
	s := Situation{Now: testMoment(), Accept: true, FullPools: map[string]bool{}, Obstacles: map[int64]Obstacle{}}
	for i := range int64(20) {
		s.Candidates = append(s.Candidates, store.Candidate{Task: i, Batch: i, Pool: "a", Lease: time.Minute})
	}
	b.ReportAllocs()
	for b.Loop() {
		if len(Decide(s).Tasks) != 20 {
			b.Fatal("not all may start")
		}
	}
}
