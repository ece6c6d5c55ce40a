package slots

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// Lease is a held slot with its holder.
type Lease struct {
	ID        string
	Device    string
	Batch     int64 // id of the task's batch; 0 if the slot was acquired without a batch
	Slot      int   // number of the slot; at or above the capacity only after a decrease of the capacity
	Acquired  time.Time
	Remaining time.Duration // time until the lease ends; negative after its end
	Age       time.Duration // time since Acquired; negative if the clock was set back
}

// Snapshot is the state of a pool at one instant, by the clock of Redis.
type Snapshot struct {
	PoolKnown bool // whether Redis knows the pool; if false, no other field is set
	Capacity  int
	Version   int64
	Leases    []Lease // sorted by Slot
	// Reserved lists the offered slots, including the slots that are kept for pollers. The offer with the lowest Left is first. Age is not set.
	Reserved []Offer
}

// Snapshot reads a pool in one atomic step. It does not end lapsed offers. It also returns these offers, with a Left of 0 or less.
func (s *Semaphore) Snapshot(ctx context.Context, pool string) (Snapshot, error) {
	if err := checkPoolName(pool); err != nil {
		return Snapshot{}, err
	}
	var reply snapshotReply
	known, err := s.runAndDecode(ctx, s.scripts.snapshot, pool, struct{}{}, &reply)
	if err != nil {
		return Snapshot{}, wrapUnavailable("reading", pool, err)
	}
	if !known {
		return Snapshot{}, nil
	}
	snapshot := Snapshot{PoolKnown: true, Capacity: reply.Capacity, Version: int64(reply.Version)}
	for _, l := range reply.Leases {
		snapshot.Leases = append(snapshot.Leases, Lease{
			ID: l.Lease, Device: l.Device, Slot: l.Slot, Batch: int64(l.Batch), Acquired: time.UnixMilli(l.Acquired).UTC(),
			Remaining: millisToDuration(l.Ends - reply.Now), Age: millisToDuration(reply.Now - l.Acquired),
		})
	}
	for _, w := range reply.Offers {
		snapshot.Reserved = append(snapshot.Reserved, Offer{
			Device: w.Device, Batch: int64(w.Batch), Task: w.taskID(), Reach: w.Reach, ID: int64(w.Offer), Left: millisToDuration(w.Ends - reply.Now),
		})
	}
	slices.SortFunc(snapshot.Leases, func(a, b Lease) int { return cmp.Compare(a.Slot, b.Slot) })
	slices.SortFunc(snapshot.Reserved, func(a, b Offer) int { return cmp.Compare(a.Left, b.Left) })
	return snapshot, nil
}

type snapshotReply struct {
	Capacity int     `json:"capacity"`
	Version  textInt `json:"version"`
	Now      int64   `json:"now"`
	Leases   luaList[struct {
		Slot     int     `json:"slot"`
		Acquired int64   `json:"acquired"`
		Ends     int64   `json:"ends"`
		Device   string  `json:"device"`
		Batch    textInt `json:"batch"`
		Lease    string  `json:"lease"`
	}] `json:"leases"`
	Offers luaList[waiterReply] `json:"offers"`
}
