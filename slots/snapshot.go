package slots

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
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
	Reserved []Offer // places that are kept for who was offered them; ID and Age are not set
}

// Snapshot reads a pool in one atomic step.
func (s *Semaphore) Snapshot(ctx context.Context, pool string) (Snapshot, error) {
	if err := checkPool(pool); err != nil {
		return Snapshot{}, err
	}
	reply, err := s.run(ctx, s.scripts.snapshot, pool).Slice()
	if err != nil {
		return Snapshot{}, unavailable("read", pool, err)
	}
	snapshot, err := parseSnapshot(reply)
	if err != nil {
		return Snapshot{}, unavailable("read", pool, err)
	}
	return snapshot, nil
}

// parseSnapshot reads: capacity, version, now; then per lease slot, remaining,
// holder; and per offer -1, ms left, member of the line.
func parseSnapshot(reply []any) (Snapshot, error) {
	if len(reply) == 0 {
		return Snapshot{}, nil
	}
	if len(reply)%3 != 0 {
		return Snapshot{}, fmt.Errorf("reply of %d parts", len(reply))
	}
	capacity, ok := reply[0].(int64)
	version, err1 := number(reply[1])
	now, err2 := number(reply[2])
	if !ok || err1 != nil || err2 != nil {
		return Snapshot{}, fmt.Errorf("reply begins %v", reply[:3])
	}
	snapshot := Snapshot{Known: true, Capacity: int(capacity), Version: version}
	for part := range slices.Chunk(reply[3:], 3) {
		if part[0] == int64(-1) {
			offer, err := parseReserved(part)
			if err != nil {
				return Snapshot{}, err
			}
			snapshot.Reserved = append(snapshot.Reserved, offer)
			continue
		}
		lease, err := parseLease(part, now)
		if err != nil {
			return Snapshot{}, err
		}
		snapshot.Leases = append(snapshot.Leases, lease)
	}
	slices.SortFunc(snapshot.Leases, func(a, b Lease) int { return cmp.Compare(a.Slot, b.Slot) })
	return snapshot, nil
}

func parseReserved(part []any) (Offer, error) {
	left, ok1 := part[1].(int64)
	member, ok2 := part[2].(string)
	fields := strings.SplitN(member, "|", 4)
	if !ok1 || !ok2 || len(fields) != 4 {
		return Offer{}, fmt.Errorf("offer %v", part)
	}
	batch, err1 := number(fields[0])
	task, err2 := number(fields[2])
	if err := errors.Join(err1, err2); err != nil {
		return Offer{}, fmt.Errorf("offer %v: %w", part, err)
	}
	return Offer{Device: fields[3], Batch: batch, Task: task, Left: millis(left)}, nil
}

func parseLease(part []any, now int64) (Lease, error) {
	slot, ok1 := part[0].(int64)
	remaining, ok2 := part[1].(int64)
	holder, ok3 := part[2].(string)
	fields := strings.Split(holder, "|")
	if !ok1 || !ok2 || !ok3 || len(fields) != 4 {
		return Lease{}, fmt.Errorf("holder %v", part)
	}
	acquired, err1 := number(fields[0])
	text, _, _ := strings.Cut(fields[3], ":")
	batch, err2 := number(text)
	if err := errors.Join(err1, err2); err != nil {
		return Lease{}, fmt.Errorf("holder %v: %w", part, err)
	}
	return Lease{
		ID: fields[2], Device: fields[1], Slot: int(slot), Batch: batch,
		Acquired:  time.UnixMilli(acquired).UTC(),
		Remaining: millis(remaining),
		Age:       millis(now - acquired),
	}, nil
}

func number(v any) (int64, error) {
	text, _ := v.(string)
	return strconv.ParseInt(text, 10, 64)
}
