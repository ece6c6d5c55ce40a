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

// Node is the one that has a pool; empty: the only one there is, or it is not known.
func (s *Semaphore) Node(ctx context.Context, pool string) string {
	return s.breakers.Node(ctx, Key(pool))
}

// Outages counts how often Redis, having answered, was found not to work.
func (s *Semaphore) Outages() int64 { return s.breakers.Outages() }

// Request asks for one slot, for any one of some tasks of a device.
type Request struct {
	Device string  // no '|'
	Wants  []Want  // 1..MaxWants, in any order
	Chance float64 // in [0,1): spreads when refused devices come back
	Reach  Reach   // how the device can be told of a slot, while it waits
}

// MaxWants is how many tasks one request may name.
const MaxWants = 200

// Pace is what tells a refused device when to ask again: when it is likely given a slot,
// by how long a slot is usually held and how many come before it, or up to a tenth
// sooner; not before Soonest, and at the latest after 3 x Period. A device that can be
// told of a slot need not come for that: it is asked back later by Period, at the
// latest after 8 x Period. Each is cut to milliseconds.
type Pace struct {
	Hold    time.Duration // 0: unknown
	Soonest time.Duration
	Period  time.Duration // between two reports of a device; 0: nobody waits
	Offer   time.Duration // how long a slot stays reserved for the device it is offered to; 0: nothing is offered
}

// Status answers a Request.
type Status int

// The answers to a Request.
const (
	// StatusUnknown: the pool is unknown to Redis and needs Restore.
	StatusUnknown Status = iota
	// StatusFull: as many are held as the capacity, or more; or what is free is
	// offered to others.
	StatusFull
	// StatusAcquired: the lease holds a slot, by this request or the same one before.
	StatusAcquired
)

// Acquisition answers one Request.
type Acquisition struct {
	Status   Status
	Slot     int           // with StatusAcquired
	Want     int           // likewise: the index of the one that holds it
	Position int           // with StatusFull: in about how many grants its task starts; 1 is next
	After    time.Duration // with StatusFull: when the device is expected to ask again
}

// Exchange is what is asked of a pool in one step: slots are freed, then given.
type Exchange struct {
	Leases   []string
	Requests []Request
}

// Call is an Exchange, and the pool that it is for.
type Call struct {
	Exchange

	Pool string
	Pace Pace
}

// Served is what became of an Exchange, in its order. In an unknown pool nothing is freed, and
// each answer is StatusUnknown.
type Served struct {
	Freed  []bool // whether this call freed a slot of the lease
	Got    []Acquisition
	Offers []Offer // to be sent, whoever asked: see OfferSlots
	Err    error   // nothing else is set then
}

// Serve frees the slots of leases, and offers what became free. Then it gives each request,
// in order, the lowest free slot of the pool for the one of its wants that comes first. A
// slot that is offered to another device is not free. A device that is refused waits until
// it is granted a slot there, or does not ask again for longer than pace says.
//
// Calls for pools of one Node go together, in one round trip if they are not large; each has an
// outcome of its own, and is one step by itself.
//
// After an error any of the requested leases may hold a slot: release them. A call may be
// repeated after an error, and says of what an earlier sending freed that it did not.
//
// The order: the batch with the lowest held / weight; of equal ones the one that had its
// turn least recently (by weight), then the older; in a batch priority, then the older task.
// Batches with a lane go before, while they hold less than their part of the capacity.
func (s *Semaphore) Serve(ctx context.Context, calls []Call) []Served {
	served, left := make([]Served, len(calls)), slices.Clone(calls)
	for i, c := range calls {
		served[i].Err = checkRequests(c.Pool, c.Requests)
	}
	for s.serveNext(ctx, left, served) {
	}
	return served
}

// serveNext sends the next part of each call together; false: there was none.
func (s *Semaphore) serveNext(ctx context.Context, left []Call, served []Served) bool {
	var sent []*redisconn.Call
	var parts []Exchange // that were sent
	var of []int         // the call of each
	for i := range left {
		if c := &left[i]; served[i].Err == nil && len(c.Leases)+len(c.Requests) > 0 {
			part := c.next()
			sent = append(sent, call(s.scripts.serve, c.Pool, serveArgs{Pace: c.Pace.args(), Leases: part.Leases, Askers: askersOf(part.Requests)}))
			parts, of = append(parts, part), append(of, i)
		}
	}
	if len(sent) == 0 {
		return false
	}
	s.breakers.Run(ctx, sends, sent)
	for n, i := range of {
		if err := served[i].add(parts[n], sent[n].Cmd); err != nil {
			served[i] = Served{Err: unavailable("serve", left[i].Pool, err)}
		}
	}
	return true
}

// next takes what goes in one call: leases before requests.
func (e *Exchange) next() (part Exchange) {
	n := min(len(e.Leases), chunk)
	part.Leases, e.Leases = e.Leases[:n], e.Leases[n:]
	if len(e.Leases) == 0 {
		m := min(len(e.Requests), chunk)
		part.Requests, e.Requests = e.Requests[:m], e.Requests[m:]
	}
	return part
}

// add notes the answers to a part. The leases that were freed come in their order.
func (o *Served) add(part Exchange, answered *redis.Cmd) error {
	var reply serveReply
	known, err := read(answered, &reply)
	if err == nil && known && len(reply.Answers) != len(part.Requests) {
		err = fmt.Errorf("%d answers to %d requests", len(reply.Answers), len(part.Requests))
	}
	if err != nil {
		return err
	}
	for _, lease := range part.Leases {
		found := len(reply.Freed) > 0 && reply.Freed[0] == lease
		if found {
			reply.Freed = reply.Freed[1:]
		}
		o.Freed = append(o.Freed, found)
	}
	for i := range part.Requests {
		var got Acquisition
		if i < len(reply.Answers) {
			got = reply.Answers[i].acquisition()
		}
		o.Got = append(o.Got, got)
	}
	o.Offers = append(o.Offers, reply.offers()...)
	return nil
}

type serveArgs struct {
	Pace    paceArgs     `json:"pace"`
	Leases  []string     `json:"leases,omitempty"`
	Updates []updateArgs `json:"updates,omitempty"`
	Missed  bool         `json:"missed,omitempty"`
	Joiners []joinerArgs `json:"joiners,omitempty"`
	Askers  []askerArgs  `json:"askers,omitempty"`
	State   bool         `json:"state,omitempty"`
}

type serveReply struct {
	Freed    list[string]     `json:"freed"`
	Answers  list[answer]     `json:"answers"`
	Offers   list[offerReply] `json:"offers"`
	Capacity int              `json:"capacity"` // this and what follows: with State
	Held     int              `json:"held"`
	Reserved int              `json:"reserved"`
	Ready    int              `json:"ready"`
	Waiting  int              `json:"waiting"`
}

type answer struct {
	Slot     *int  `json:"slot"`
	Want     int   `json:"want"`
	After    int64 `json:"after"`
	Position int   `json:"position"`
}

func (a answer) acquisition() Acquisition {
	if a.Slot == nil {
		return Acquisition{Status: StatusFull, Position: a.Position, After: millis(a.After)}
	}
	return Acquisition{Status: StatusAcquired, Slot: *a.Slot, Want: a.Want - 1}
}

func askersOf(reqs []Request) []askerArgs {
	askers := make([]askerArgs, len(reqs))
	for i, r := range reqs {
		askers[i] = askerArgs{Device: r.Device, Reach: r.Reach, Chance: min(max(r.Chance, 0), 1), Wants: make([]wantArgs, len(r.Wants))}
		for n, w := range r.Wants {
			askers[i].Wants[n] = newWantArgs(w)
		}
	}
	return askers
}

func (p Pace) args() paceArgs {
	soonest := max(p.Soonest.Milliseconds(), 0)
	period := max(p.Period.Milliseconds(), 0)
	if period > 0 {
		period = max(period, soonest)
	}
	return paceArgs{Hold: max(p.Hold.Milliseconds(), 0), Soonest: soonest, Period: period, Offer: max(p.Offer.Milliseconds(), 0)}
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
	return checkOrder(w.Batch, w.Task, w.Weight, w.Priority, w.Lane)
}

// checkOrder refuses numbers that a script cannot order.
func checkOrder(batch, task int64, weight, priority, lane int) error {
	if weight < 0 || weight > 1<<20 || priority < -1<<30 || priority > 1<<30 || lane < 0 || lane > 100 {
		return fmt.Errorf("%w: weight %d, priority %d, lane %d", ErrInvalid, weight, priority, lane)
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
