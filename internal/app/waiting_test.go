package app

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/internal/test/must"
	"github.com/fleetslots/dispatcher/store"
)

// namedPools is a fake ledger with a list of pools. Each pool has one waiting device more than the pool before it.
type namedPools struct {
	poolReader
	names []string
}

func (n *namedPools) PoolOverviews(_ context.Context, after string, limit, _ int) (views []store.PoolOverview, err error) {
	for i, name := range n.names {
		if name > after && len(views) < limit {
			views = append(views, store.PoolOverview{Pool: store.Pool{Name: name}, Waiting: i})
		}
	}
	return views, nil
}

// TestWaitingIsCountedInTurns checks the metric of waiting devices with many pools. Each read counts some of the
// pools, and after a few reads all are counted. Deleted pools are forgotten.
func TestWaitingIsCountedInTurns(t *testing.T) {
	t.Parallel()
	source := &namedPools{}
	want := map[string]int{}
	for i := range 2*poolsPerQuery + 5 {
		source.names = append(source.names, fmt.Sprintf("p-%03d", i))
		want[source.names[i]] = i
	}
	for share, readings := range map[time.Duration]int{0: 3, time.Minute: 1} {
		w := &waitingCounts{pools: source, readTime: share, current: map[string]int{}, previous: map[string]int{}}
		read := func() map[string]int {
			counts, err := w.readCounts(t.Context())
			must.Succeed(t, err)
			return counts
		}
		for i := range readings {
			if n, least := len(read()), (i+1)*poolsPerQuery; n < min(least, len(want)) {
				t.Errorf("%d pools after %d readings, want %d", n, i+1, least)
			}
		}
		if diff := cmp.Diff(want, read()); diff != "" {
			t.Errorf("in shares of %s: %s", share, diff)
		}
		all := source.names
		source.names = all[:len(all)-1]
		for range 2 * readings {
			read()
		}
		left := maps.Clone(want)
		delete(left, all[len(all)-1])
		if diff := cmp.Diff(left, read()); diff != "" {
			t.Errorf("after the last pool was deleted: %s", diff)
		}
		source.names = all
	}
}
