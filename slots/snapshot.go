package slots

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// Lease is a slot in use.
type Lease struct {
	ID        string
	Device    string
	Batch     int64 // of its task; 0 when it was acquired without one
	Slot      int   // may be at or above the capacity after that was lowered
	Acquired  time.Time
	Remaining time.Duration // until the lease ends; negative when it is over
	Age       time.Duration // since Acquired; negative after the clock stepped back
}

// Snapshot is a pool at one instant, by the clock of Redis.
type Snapshot struct {
	Known    bool // false: nothing else is set
	Capacity int
	Version  int64
	Leases   []Lease // sorted by slot
	Reserved []Offer // slots that are offered, those first that lapse first; Age is not set
}

// Snapshot reads a pool in one atomic step.
func (s *Semaphore) Snapshot(ctx context.Context, pool string) (Snapshot, error) {
	if err := checkPool(pool); err != nil {
		return Snapshot{}, err
	}
	var reply snapshotReply
	known, err := s.ask(ctx, s.scripts.snapshot, pool, struct{}{}, &reply)
	if err != nil {
		return Snapshot{}, unavailable("read", pool, err)
	}
	if !known {
		return Snapshot{}, nil
	}
	snapshot := Snapshot{Known: true, Capacity: reply.Capacity, Version: int64(reply.Version)}
	for _, l := range reply.Leases {
		snapshot.Leases = append(snapshot.Leases, Lease{
			ID: l.Lease, Device: l.Device, Slot: l.Slot, Batch: int64(l.Batch), Acquired: time.UnixMilli(l.Acquired).UTC(),
			Remaining: millis(l.Ends - reply.Now), Age: millis(reply.Now - l.Acquired),
		})
	}
	for _, w := range reply.Offers {
		snapshot.Reserved = append(snapshot.Reserved, Offer{
			Device: w.Device, Batch: int64(w.Batch), Task: w.task(), Reach: w.Reach, ID: int64(w.Offer), Left: millis(w.Ends - reply.Now),
		})
	}
	slices.SortFunc(snapshot.Leases, func(a, b Lease) int { return cmp.Compare(a.Slot, b.Slot) })
	slices.SortFunc(snapshot.Reserved, func(a, b Offer) int { return cmp.Compare(a.Left, b.Left) })
	return snapshot, nil
}

type snapshotReply struct {
	Capacity int      `json:"capacity"`
	Version  numbered `json:"version"`
	Now      int64    `json:"now"`
	Leases   list[struct {
		Slot     int      `json:"slot"`
		Acquired int64    `json:"acquired"`
		Ends     int64    `json:"ends"`
		Device   string   `json:"device"`
		Batch    numbered `json:"batch"`
		Lease    string   `json:"lease"`
	}] `json:"leases"`
	Offers list[waiterReply] `json:"offers"`
}
