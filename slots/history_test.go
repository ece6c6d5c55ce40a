package slots_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/fleetslots/dispatcher/slots"
)

// history is a random one, in a pool of its own.
type history struct {
	*server

	ctx  context.Context //nolint:containedctx // rapid's actions take none
	pool string
}

// histories tries random ones: few on a Redis with each change, many on every kind
// in the long run.
func histories(t *testing.T, try func(t *rapid.T, h history)) {
	t.Helper()
	onLines(t, func(t *testing.T, s *server) {
		t.Helper()
		s.slowInLua(t)
		if testing.Short() && s.Cluster {
			t.Skip("long: a Cluster node runs the scripts as the Redis does; make test-long runs it")
		}
		var pools atomic.Int64
		rapid.Check(t, func(rt *rapid.T) {
			try(rt, history{s, t.Context(), fmt.Sprintf("%s.%d", t.Name(), pools.Add(1))})
		})
	})
}

func (h history) key(name string) string { return "slots:{" + h.pool + "}:" + name }

// known is what can be seen of a pool that is known.
func (h history) known(t *rapid.T) slots.Snapshot {
	snapshot, err := h.Snapshot(h.ctx, h.pool)
	if err != nil || !snapshot.Known {
		t.Fatal(snapshot, err)
	}
	return snapshot
}
