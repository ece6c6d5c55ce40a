package slots

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// WaiterRefresh is the report of a device that already waits in the queue.
type WaiterRefresh struct {
	Device string
	Chance float64 // as in Request
	Reach  Reach   // as in Request
}

// Refresh records that devices which wait in the queue of a pool have asked again. It is much faster than Serve, and gives no slot. askAfter
// has, for each device, the time after which the device must ask again. If this time is 0, the caller must call Serve for the device, because
// the device does not wait, or because Serve might give it a slot or another place.
//
// Refresh does not check that Redis knows the pool, or that the tasks of a device are unchanged. It must not be called for a device that waits
// with an urgent task, because its place depends on the share of the urgent batches.
func (s *Semaphore) Refresh(ctx context.Context, pool string, pace Pace, refreshes []WaiterRefresh) (askAfter []time.Duration, err error) {
	if err := checkPoolName(pool); err != nil {
		return nil, err
	}
	askAfter = make([]time.Duration, 0, len(refreshes))
	for part := range slices.Chunk(refreshes, chunk) {
		args := serveArgs{Pace: pace.toArgs(), Askers: make([]askerArgs, len(part))}
		for i, r := range part {
			args.Askers[i] = askerArgs{Device: r.Device, Reach: r.Reach, Chance: min(max(r.Chance, 0), 1)}
		}
		reply, err := s.runScript(ctx, s.scripts.refresh, pool, args).Int64Slice()
		if err == nil && len(reply) != len(part) {
			err = fmt.Errorf("the reply has %d results for %d devices", len(reply), len(part))
		}
		if err != nil {
			return nil, wrapUnavailable("refreshing waiters of", pool, err)
		}
		for _, ms := range reply {
			askAfter = append(askAfter, millisToDuration(ms))
		}
	}
	return askAfter, nil
}
