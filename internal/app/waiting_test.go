package app

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/store"
)

// named is a list of pools by name. Each pool has one waiting device more than the previous pool.
type named struct {
	poolReader
	all []string
}

func (n *named) PoolViews(_ context.Context, after string, limit, _ int) (views []store.PoolView, err error) {
	for i, name := range n.all {
		if name > after && len(views) < limit {
			views = append(views, store.PoolView{Pool: store.Pool{Name: name}, Waiting: i})
		}
	}
	return views, nil
}

// TestWaitingIsCountedInTurns checks that with many pools each read counts some of them, and soon all
// are counted. Deleted pools are forgotten.
func TestWaitingIsCountedInTurns(t *testing.T) {
	t.Parallel()
	source := &named{}
	want := map[string]int{}
	for i := range 2*waitingPools + 5 {
		source.all = append(source.all, fmt.Sprintf("p-%03d", i))
		want[source.all[i]] = i
	}
	for share, readings := range map[time.Duration]int{0: 3, time.Minute: 1} {
		w := &waitingCounts{pools: source, share: share, counting: map[string]int{}, counted: map[string]int{}}
		read := func() map[string]int {
			counts, err := w.read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return counts
		}
		for i := range readings {
			if n, least := len(read()), (i+1)*waitingPools; n < min(least, len(want)) {
				t.Errorf("%d pools after %d readings, want %d", n, i+1, least)
			}
		}
		if diff := cmp.Diff(want, read()); diff != "" {
			t.Errorf("in shares of %s: %s", share, diff)
		}
		all := source.all
		source.all = all[:len(all)-1]
		for range 2 * readings {
			read()
		}
		left := maps.Clone(want)
		delete(left, all[len(all)-1])
		if diff := cmp.Diff(left, read()); diff != "" {
			t.Errorf("after the last pool was deleted: %s", diff)
		}
		source.all = all
	}
}
