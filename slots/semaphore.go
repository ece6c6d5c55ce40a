package slots

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/redisconn"
)

// Semaphore hands out the slots of any number of pools. It is safe for
// concurrent use.
type Semaphore struct {
	client   redis.UniversalClient
	scripts  scripts
	breakers *redisconn.Breakers
}

// New returns a semaphore in the Redis of client, whose settings should be those
// of redisconn.Options: a client that retries by itself, or without a timeout, keeps the
// guarantees but not the promptness.
func New(client redis.UniversalClient) *Semaphore {
	now := time.Now //nolint:forbidigo // elapsed time, which no server can tell
	return &Semaphore{client: client, scripts: newScripts(), breakers: redisconn.NewBreakers(client, now)}
}

// Outages counts how often Redis, having answered, was found not to work.
func (s *Semaphore) Outages() int64 { return s.breakers.Outages() }

// Request asks for one slot, for any one of some tasks of a device.
type Request struct {
	Device string  // no '|'
	Wants  []Want  // 1..MaxWants, in any order
	Chance float64 // in [0,1): spreads when refused devices come back
	Reach  Reach   // how the device can be told of a place, while it waits
}

// MaxWants is how many tasks one request may name.
const MaxWants = 200

// Want is a task that a slot is wanted for, with what decides its turn.
type Want struct {
	Lease    string        // unique per acquisition; no '|'
	TTL      time.Duration // of the lease: at least 1 ms; cut to milliseconds
	Batch    int64         // 0..2^53
	Weight   int           // of the batch: 1..2^20; 0 counts as 1
	Priority int           // inside the batch, higher first: within +-2^30
	Task     int64         // 0..2^53; the lower the older
}

// Pace is what tells a refused device when to ask again: when its turn is
// likely, by how long a slot is usually held and how many wait, or up to a tenth
// sooner; in pools of 40 slots or more somewhat later, as long as enough stand
// behind it; not before Soonest and at the latest after 3 x Longest. A device that can
// be told of a place need not come for its turn: it is asked back later by Longest, at
// the latest after 8 x Longest. Each is cut to milliseconds.
type Pace struct {
	Hold    time.Duration // 0: unknown
	Soonest time.Duration
	Longest time.Duration // the report period; 0: nobody is told to ask again, or stands in line
	Offer   time.Duration // how long a place stays reserved for whom it is offered to; 0: nothing is offered
	Waiting int           // devices known to wait, in line or not; 0: unknown. Only Acquire goes by it
}

// Status answers a Request.
type Status int

// The answers to a Request.
const (
	// StatusUnknown: the pool is unknown to Redis and needs Restore.
	StatusUnknown Status = iota
	// StatusFull: as many are held as the capacity, or more; or what is free is
	// kept for others, who come first and are expected.
	StatusFull
	// StatusAcquired: the lease got a slot by this request.
	StatusAcquired
	// StatusHeld: the lease held this slot before.
	StatusHeld
)

// Acquisition answers one Request.
type Acquisition struct {
	Status   Status
	Slot     int           // with StatusAcquired and StatusHeld
	Want     int           // likewise: the index of the one that holds it
	Position int           // with StatusFull: how many grants until its turn; 1 is next
	After    time.Duration // with StatusFull: when the device is expected to ask again
}

// Acquire gives each request, in order, the lowest free slot of the pool for
// one of its wants, if that is its turn; one outcome per request. Who is refused
// stands in the line of the pool until it is granted a slot there, or does not
// ask again for longer than pace says. The offers are to be sent, whoever asked:
// see HandOn. After an error any of the leases may hold a slot: release them.
//
// The order: the batch with the lowest held / weight; of equal ones the one that
// had its turn least recently (by weight), then the older; in a batch priority,
// then the older task. A slot is kept free only for somebody who comes first and
// is expected now: see docs/architecture.md.
func (s *Semaphore) Acquire(ctx context.Context, pool string, pace Pace, reqs []Request) ([]Acquisition, []Offer, error) {
	if err := checkRequests(pool, reqs); err != nil {
		return nil, nil, err
	}
	out := make([]Acquisition, 0, len(reqs))
	var offers []Offer
	for part := range slices.Chunk(reqs, chunk) {
		reply, made, err := s.offering(ctx, s.scripts.acquire, pool, acquireArgs(pace, part), acquisitionParts*len(part))
		if err != nil {
			return nil, nil, unavailable("acquire from", pool, err)
		}
		for a := range slices.Chunk(reply, acquisitionParts) {
			out = append(out, Acquisition{
				Status: Status(a[0]), Slot: int(a[1]), Want: max(int(a[2])-1, 0),
				Position: int(a[3]), After: millis(a[4]),
			})
		}
		offers = append(offers, made...)
	}
	return out, offers, nil
}

// acquisitionParts is how many numbers the script returns per request.
const acquisitionParts = 5

func acquireArgs(pace Pace, reqs []Request) []any {
	args := append(pace.args(), max(pace.Waiting, 0))
	for _, r := range reqs {
		args = append(args, r.Device, int(min(max(r.Chance, 0), 1)*1000), int(r.Reach), len(r.Wants))
		for _, w := range r.Wants {
			args = append(args, w.Lease, w.TTL.Milliseconds(), w.Batch, max(w.Weight, 1), w.Priority, w.Task)
		}
	}
	return args
}

// args begin those of every script that knows the line (line.lua).
func (p Pace) args() []any {
	soonest := max(p.Soonest.Milliseconds(), 0)
	return []any{newCall(), max(p.Hold.Milliseconds(), 0), soonest, max(p.Longest.Milliseconds(), soonest), max(p.Offer.Milliseconds(), 0)}
}

// Release frees the slots of these leases and says for each whether it held
// one; what became free is offered to who waits. A lease that holds nothing, or a
// pool that is unknown, changes nothing. A call may be repeated after an error.
func (s *Semaphore) Release(ctx context.Context, pool string, pace Pace, leases []string) (freed []bool, offers []Offer, err error) {
	if err := checkPool(pool); err != nil {
		return nil, nil, err
	}
	freed = make([]bool, 0, len(leases))
	for part := range slices.Chunk(leases, chunk) {
		args := pace.args()
		for _, lease := range part {
			args = append(args, lease)
		}
		reply, made, err := s.offering(ctx, s.scripts.release, pool, args, len(part))
		if err != nil {
			return nil, nil, unavailable("release to", pool, err)
		}
		for _, n := range reply {
			freed = append(freed, n == 1)
		}
		offers = append(offers, made...)
	}
	return freed, offers, nil
}

func checkRequests(pool string, reqs []Request) error {
	if err := checkPool(pool); err != nil {
		return err
	}
	for _, r := range reqs {
		if len(r.Wants) < 1 || len(r.Wants) > MaxWants {
			return fmt.Errorf("%w: %d tasks for device %s, want 1 to %d", ErrInvalid, len(r.Wants), r.Device, MaxWants)
		}
		for _, w := range r.Wants {
			if err := checkWant(r.Device, w); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkWant(device string, w Want) error {
	if err := checkHolder(w.Lease, device); err != nil {
		return err
	}
	if w.TTL < time.Millisecond {
		return fmt.Errorf("%w: ttl %s of lease %s", ErrInvalid, w.TTL, w.Lease)
	}
	return checkOrder(w.Batch, w.Task, w.Weight, w.Priority)
}

// checkOrder refuses numbers that a script cannot order.
func checkOrder(batch, task int64, weight, priority int) error {
	if weight < 0 || weight > 1<<20 || priority < -1<<30 || priority > 1<<30 {
		return fmt.Errorf("%w: weight %d, priority %d", ErrInvalid, weight, priority)
	}
	return checkNumbers(batch, task)
}

func checkNumbers(numbers ...int64) error {
	for _, n := range numbers {
		if n < 0 || n > maxNumber {
			return fmt.Errorf("%w: number %d", ErrInvalid, n)
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
