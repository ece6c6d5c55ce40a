package web

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

// TestCountsOfReplicasAreAddedUpOnce checks the sums of the counts that replicas publish. Each count must be added once. If a replica ran
// for a long time before its first read, its earlier counts must be left out.
func TestCountsOfReplicasAreAddedUpOnce(t *testing.T) {
	t.Parallel()
	h, read := newRecentPoolCounts(), tallyReader{}
	says := func(replica string, running time.Duration, counts map[string]meters.Tally) store.Tallies {
		text, err := json.Marshal(counts)
		must.Succeed(t, err)
		return store.Tallies{Replica: replica, Uptime: running, Counts: text}
	}
	type counts = map[string]meters.Tally
	for _, reading := range [][]store.Tallies{
		{says("a", time.Hour, counts{"p": {Denied: 1000}})},                                                                     // the first read
		{says("a", time.Hour, counts{"p": {Denied: 1003, Drift: 2}}), says("b", 5*time.Second, counts{"p": {Denied: 4}})},       // b is new
		{says("a", time.Hour, counts{"p": {Denied: 1003, Drift: 2}}), says("b", 9*time.Second, counts{"p": {Denied: 4}})},       // no new counts
		{says("b", 14*time.Second, counts{"p": {Denied: 5, Conflicts: 1}, "q": {Denied: 7}})},                                   // a ended
		{says("b", 20*time.Second, counts{"p": {Denied: 2}, "q": {Denied: 7}}), says("c", time.Hour, counts{"q": {Denied: 9}})}, // p was created again; c is read for the first time
	} {
		must.Succeed(t, read.addTallyGrowth(reading, h))
	}
	h.endInterval(time.Now())
	if got, want := h.recentCounts("p"), (poolCounts{Denied: 3 + 4 + 1 + 2, Conflicts: 1, Drift: 2}); got != want {
		t.Errorf("p: %+v, want %+v", got, want)
	}
	if got, want := h.recentCounts("q"), (poolCounts{Denied: 7}); got != want {
		t.Errorf("q: %+v, want %+v", got, want)
	}
	if err := read.addTallyGrowth([]store.Tallies{{Replica: "x", Counts: []byte("no")}}, h); err == nil {
		t.Error("nonsense was read")
	}
}

func TestTroubleIsShownForTenMinutes(t *testing.T) {
	t.Parallel()
	h := newRecentPoolCounts()
	h.addTally("p", meters.Tally{Denied: 1, Conflicts: 1, Drift: 70_000})
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	intervals := int(troubleShownFor / countEvery)
	for i := range intervals + 1 {
		h.endInterval(start.Add(time.Duration(i) * countEvery))
		lately := h.recentCounts("p")
		if shown := i < intervals; shown != (lately.Conflicts == 1 && lately.Drift == 70_000) {
			t.Fatalf("after %d intervals: %+v", i, lately)
		}
		if shown := i < int(time.Minute/countEvery); shown != (lately.Denied == 1) {
			t.Fatalf("after %d intervals: %+v", i, lately)
		}
	}
}
