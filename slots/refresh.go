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

// Refresh records that devices which wait in the queue of a pool asked again. It costs a fraction of Serve and gives no slot. For each
// device it returns the time after which the device is to ask again. A time of 0 means that the caller must call Serve for the device: it
// does not wait, or Serve might give it a slot or another place.
//
// Refresh does not check that Redis knows the pool, and must not be called for the waiter of an urgent task, whose place depends on the
// urgent share.
func (s *Semaphore) Refresh(ctx context.Context, pool string, pace Pace, refreshes []WaiterRefresh) ([]time.Duration, error) {
	if err := checkPool(pool); err != nil {
		return nil, err
	}
	times := make([]time.Duration, 0, len(refreshes))
	for part := range slices.Chunk(refreshes, chunk) {
		args := refreshArgs{Pace: pace.args(), Askers: make([]refreshAskerArgs, len(part))}
		for i, r := range part {
			args.Askers[i] = refreshAskerArgs{Device: r.Device, Reach: r.Reach, Chance: min(max(r.Chance, 0), 1)}
		}
		reply, err := s.runScript(ctx, s.scripts.refresh, pool, args).Int64Slice()
		if err == nil && len(reply) != len(part) {
			err = fmt.Errorf("%d results for %d devices", len(reply), len(part))
		}
		if err != nil {
			return nil, unavailable("refreshing waiters of", pool, err)
		}
		for _, ms := range reply {
			times = append(times, millis(ms))
		}
	}
	return times, nil
}

type refreshArgs struct {
	Pace   paceArgs           `json:"pace"`
	Askers []refreshAskerArgs `json:"askers"`
}

type refreshAskerArgs struct {
	Device string  `json:"device"`
	Reach  Reach   `json:"reach"`
	Chance float64 `json:"chance"`
}
