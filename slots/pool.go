package slots

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// MaxCapacity is the largest capacity of a pool.
const MaxCapacity = 10000

// maxExactInt is the largest integer that a script can compare exactly.
const maxExactInt = 1 << 53

// Config is the capacity of a pool and the version of the capacity.
type Config struct {
	Capacity int   // 0..MaxCapacity; a pool with capacity 0 grants nothing
	Version  int64 // 0..2^53; increases with every change
}

// LedgerGrant is a grant as the ledger records it.
type LedgerGrant struct {
	Lease, Device string
	Slot          int           // number of the slot, less than MaxCapacity
	Batch         int64         // id of the task's batch, 0..2^53
	Remaining     time.Duration // time until the lease ends
	Age           time.Duration // time since the grant; a negative age counts as 0
}

// Configure sets the capacity of a pool if config.Version is newer than the stored version. Otherwise changed is false. A lower capacity
// revokes no lease. The pool then grants nothing until fewer slots are held than the new capacity allows. Configure offers no slot: after an
// increase, call OfferSlots. If Redis does not know the pool, Configure returns ErrUnknownPool.
func (s *Semaphore) Configure(ctx context.Context, pool string, config Config) (changed bool, err error) {
	if err := checkConfig(pool, config); err != nil {
		return false, err
	}
	reply, err := s.runScript(ctx, s.scripts.configure, pool, configureArgs{Call: newCallID(), Capacity: config.Capacity, Version: config.Version}).Int()
	switch {
	case err != nil:
		return false, wrapUnavailable("configuring", pool, err)
	case reply < 0:
		return false, fmt.Errorf("configuring pool %s: %w", pool, ErrUnknownPool)
	}
	return reply == 1, nil
}

// Restore writes a pool with these holders to Redis. Their leases and slots must be distinct. The pool stays unknown to Redis until the last
// chunk of holders has arrived. restored is false if another caller has restored the pool or has begun to restore it. If restored is false,
// or after an error, read the pool with Snapshot, and restore the pool again if it is still unknown.
func (s *Semaphore) Restore(ctx context.Context, pool string, config Config, holders []LedgerGrant) (restored bool, err error) {
	if err := checkConfig(pool, config); err != nil {
		return false, err
	}
	if err := checkHolders(holders); err != nil {
		return false, err
	}
	call := newCallID()
	for offset := 0; ; offset += chunk {
		end := min(offset+chunk, len(holders))
		reply, err := s.runScript(ctx, s.scripts.restore, pool, restoreArgs{
			configureArgs: configureArgs{Call: call, Capacity: config.Capacity, Version: config.Version},
			Offset:        offset, Last: end == len(holders), Holders: newHolderArgs(holders[offset:end]),
		}).Int()
		if err != nil {
			return false, wrapUnavailable("restoring", pool, err)
		}
		if reply != 1 || end == len(holders) {
			return reply == 1, nil
		}
	}
}

// Adopt records each of holders as the holder of its slot, even if more slots than the capacity are then held. adopted has one element for
// each holder. It is false if another lease holds the slot. Then nothing is changed for this holder. If the lease of a holder held another slot,
// Adopt frees that slot. If Redis does not know the pool, Adopt returns ErrUnknownPool.
func (s *Semaphore) Adopt(ctx context.Context, pool string, holders []LedgerGrant) (adopted []bool, err error) {
	if err := checkPoolName(pool); err != nil {
		return nil, err
	}
	if err := checkHolders(holders); err != nil {
		return nil, err
	}
	adopted = make([]bool, 0, len(holders))
	for part := range slices.Chunk(holders, chunk) {
		args := map[string][]holderArgs{"holders": newHolderArgs(part)}
		reply, err := s.runScript(ctx, s.scripts.adopt, pool, args).Int64Slice()
		if err != nil {
			return nil, wrapUnavailable("adopting grants into", pool, err)
		}
		if len(reply) != len(part) {
			return nil, fmt.Errorf("adopting grants into pool %s: %w", pool, ErrUnknownPool)
		}
		for _, n := range reply {
			adopted = append(adopted, n == 1)
		}
	}
	return adopted, nil
}

// Forget deletes all keys of a pool.
func (s *Semaphore) Forget(ctx context.Context, pool string) error {
	if err := checkPoolName(pool); err != nil {
		return err
	}
	err := s.breakers.Do(ctx, NodeKey(pool), maxSends, func() error { return s.client.Del(ctx, poolKeys(pool)...).Err() })
	if err != nil {
		return wrapUnavailable("forgetting", pool, err)
	}
	return nil
}

type configureArgs struct {
	Call     string `json:"call"`
	Capacity int    `json:"capacity"`
	Version  int64  `json:"version"`
}

type restoreArgs struct {
	configureArgs

	Offset  int          `json:"offset"`
	Last    bool         `json:"last"`
	Holders []holderArgs `json:"holders,omitempty"`
}

type holderArgs struct {
	Slot   int    `json:"slot"`
	Lease  string `json:"lease"`
	Device string `json:"device"`
	Batch  string `json:"batch"`
	Left   int64  `json:"left"`
	Age    int64  `json:"age"`
}

func newHolderArgs(holders []LedgerGrant) []holderArgs {
	args := make([]holderArgs, len(holders))
	for i, h := range holders {
		args[i] = holderArgs{
			Slot: h.Slot, Lease: h.Lease, Device: h.Device, Batch: formatBatchID(h.Batch),
			Left: h.Remaining.Milliseconds(), Age: max(h.Age.Milliseconds(), 0),
		}
	}
	return args
}

func checkConfig(pool string, config Config) error {
	if config.Capacity < 0 || config.Capacity > MaxCapacity || config.Version < 0 || config.Version > maxExactInt {
		return fmt.Errorf("%w: pool %s: capacity %d or version %d is out of range", ErrInvalid, pool, config.Capacity, config.Version)
	}
	return checkPoolName(pool)
}

// checkHolders returns ErrInvalid if a holder is invalid or appears twice. Duplicates are refused because Redis would then store fewer holders
// than were sent, and lua/restore.lua would refuse the next chunk.
func checkHolders(holders []LedgerGrant) error {
	slots, leases := make(map[int]bool, len(holders)), make(map[string]bool, len(holders))
	for _, h := range holders {
		if err := checkHolderNames(h.Lease, h.Device); err != nil {
			return err
		}
		if err := checkExactInts(h.Batch); err != nil {
			return err
		}
		if h.Slot < 0 || h.Slot >= MaxCapacity || slots[h.Slot] || leases[h.Lease] {
			return fmt.Errorf("%w: lease %s on slot %d: out of range, or appears twice", ErrInvalid, h.Lease, h.Slot)
		}
		slots[h.Slot], leases[h.Lease] = true, true
	}
	return nil
}
