package slots

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Semaphore hands out the slots of any number of pools. It is safe for
// concurrent use.
type Semaphore struct {
	client   redis.UniversalClient
	scripts  scripts
	breakers *breakers
}

// New returns a semaphore in the Redis of client, whose settings should be those
// of Options: a client that retries by itself, or without a timeout, keeps the
// guarantees but not the promptness.
func New(client redis.UniversalClient) *Semaphore {
	return &Semaphore{client: client, scripts: newScripts(), breakers: newBreakers(client)}
}

// Request asks for one slot.
type Request struct {
	Lease  string        // unique per acquisition; no '|'
	Device string        // no '|'
	TTL    time.Duration // of the lease: at least 1 ms; cut to milliseconds
}

// Status answers a Request.
type Status int

// The answers to a Request.
const (
	// StatusUnknown: the pool is unknown to Redis and needs Restore.
	StatusUnknown Status = iota
	// StatusFull: as many are held as the capacity, or more.
	StatusFull
	// StatusAcquired: the lease got a slot by this request.
	StatusAcquired
	// StatusHeld: the lease held this slot before.
	StatusHeld
)

// Acquisition answers one Request.
type Acquisition struct {
	Status Status
	Slot   int // with StatusAcquired and StatusHeld
	// NextFree is, with StatusFull, the time until the earliest end of a lease;
	// 0 when nothing is held, or a lease is over and not yet released.
	NextFree time.Duration
}

// Acquire gives each request the lowest free slot of the pool, in order, and
// returns one outcome per request. After an error any of the leases may hold a
// slot: release them.
func (s *Semaphore) Acquire(ctx context.Context, pool string, reqs []Request) ([]Acquisition, error) {
	if err := checkRequests(pool, reqs); err != nil {
		return nil, err
	}
	out := make([]Acquisition, 0, len(reqs))
	for part := range slices.Chunk(reqs, chunk) {
		args := make([]any, 0, 1+3*len(part))
		args = append(args, newCall())
		for _, r := range part {
			args = append(args, r.Lease, r.Device, r.TTL.Milliseconds())
		}
		reply, err := s.run(ctx, s.scripts.acquire, pool, args...).Int64Slice()
		if err != nil {
			return nil, unavailable("acquire from", pool, err)
		}
		for a := range slices.Chunk(reply, 3) {
			out = append(out, Acquisition{Status: Status(a[0]), Slot: int(a[1]), NextFree: millis(a[2])})
		}
	}
	return out, nil
}

// Release frees the slots of these leases and says for each whether it held
// one. A lease that holds nothing, or a pool that is unknown, changes nothing.
// A call may be repeated after an error.
func (s *Semaphore) Release(ctx context.Context, pool string, leases []string) ([]bool, error) {
	if err := checkPool(pool); err != nil {
		return nil, err
	}
	out := make([]bool, 0, len(leases))
	for part := range slices.Chunk(leases, chunk) {
		args := make([]any, 0, 1+len(part))
		args = append(args, newCall())
		for _, lease := range part {
			args = append(args, lease)
		}
		reply, err := s.run(ctx, s.scripts.release, pool, args...).Int64Slice()
		if err != nil {
			return nil, unavailable("release to", pool, err)
		}
		for _, freed := range reply {
			out = append(out, freed == 1)
		}
	}
	return out, nil
}

func checkRequests(pool string, reqs []Request) error {
	if err := checkPool(pool); err != nil {
		return err
	}
	for _, r := range reqs {
		if err := checkHolder(r.Lease, r.Device); err != nil {
			return err
		}
		if r.TTL < time.Millisecond {
			return fmt.Errorf("%w: ttl %s of lease %s", ErrInvalid, r.TTL, r.Lease)
		}
	}
	return nil
}

// checkPool keeps a name from breaking out of the hash tag.
func checkPool(pool string) error {
	if pool == "" || strings.ContainsAny(pool, "{}") {
		return fmt.Errorf("%w: pool name %q", ErrInvalid, pool)
	}
	return nil
}

// checkHolder keeps names from breaking the holder's record.
func checkHolder(lease, device string) error {
	if lease == "" || device == "" || strings.Contains(lease+device, "|") {
		return fmt.Errorf("%w: lease %q of device %q", ErrInvalid, lease, device)
	}
	return nil
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
