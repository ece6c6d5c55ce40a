package slots

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fleetslots/dispatcher/internal/reach"
)

// Reach is how a device that waits can be told of a slot.
type Reach = reach.Reach

// The ways to tell a device.
const (
	ReachNone = reach.None
	ReachPush = reach.Push
	ReachPark = reach.Park
)

// Offer is a free slot that is reserved for a waiter. It permits nothing: its
// device asks, and acquires. Nobody else gets the slot while it lasts.
type Offer struct {
	Device      string
	Batch, Task int64 // what it waits with
	Reach       Reach
	ID          int64         // names this offer; a later one to the same device has another
	Left        time.Duration // how long the slot stays reserved
	Age         time.Duration // since the offer was made
}

// Update says what became of a waiter, or of the offer to it.
type Update struct {
	Kind   UpdateKind
	Device string // of all but BatchLeft
	Offer  int64  // its ID; WaiterAway and WaiterLeft are about the device whatever it was offered, with 0
	Batch  int64  // of BatchLeft
}

// UpdateKind is the kind of an update.
type UpdateKind string

// The kinds of update.
const (
	OfferSent    UpdateKind = "sent"   // the device was told of the offer: it is not returned again
	WaiterAway   UpdateKind = "away"   // the device stays in the queue, but is offered nothing until it asks again
	WaiterLeft   UpdateKind = "left"   // the device waits no more
	BatchLeft    UpdateKind = "closed" // the waiters of a batch wait no more, 200 of each class at most
	OffersMissed UpdateKind = "missed" // of no device: offers to parked reports that were not sent for 500 ms are returned, though others were told of them
)

// QueueState is the queue of a pool at one instant.
type QueueState struct {
	Known    bool // the pool is known to Redis; false: nothing else is set
	Capacity int
	Held     int
	Reserved int     // slots that are offered
	Ready    int     // in the queue, can be told of a slot, and was offered none
	Waiting  int     // in the queue, all of them
	Offers   []Offer // to be sent: new ones, and those of which nobody said that they were
}

// OfferSlots applies the updates, ends the offers whose time is over, and offers what is free: at most
// 100 slots for each 500 updates. A device that lets an offer lapse is offered nothing more until it asks.
func (s *Semaphore) OfferSlots(ctx context.Context, pool string, pace Pace, updates []Update) (QueueState, error) {
	var args []updateArgs
	missed := false
	for _, n := range updates {
		if err := checkNumbers(n.Offer, n.Batch); err != nil {
			return QueueState{}, err
		}
		if missed = missed || n.Kind == OffersMissed; n.Kind == OffersMissed {
			continue
		}
		of := updateArgs{Kind: n.Kind, Device: n.Device, Batch: batchName(n.Batch)}
		if n.Offer != 0 {
			of.Offer = strconv.FormatInt(n.Offer, 10)
		}
		args = append(args, of)
	}
	return offerSlots(ctx, s, pool, args, func(part []updateArgs) serveArgs {
		return serveArgs{Pace: pace.args(), Updates: part, Missed: missed, State: true}
	})
}

// Join adds devices to the queue (Joiner), and does what OfferSlots does.
func (s *Semaphore) Join(ctx context.Context, pool string, pace Pace, joiners []Joiner) (QueueState, error) {
	args := make([]joinerArgs, len(joiners))
	for i, w := range joiners {
		if err := errors.Join(checkHolder("-", w.Device), checkOrder(w.Batch, w.Task, w.Weight, w.Priority, w.Lane)); err != nil {
			return QueueState{}, err
		}
		args[i] = joinerArgs{wantArgs: newWaiterArgs(w.Waiter), Device: w.Device, Reach: w.Reach}
	}
	return offerSlots(ctx, s, pool, args, func(part []joinerArgs) serveArgs {
		return serveArgs{Pace: pace.args(), Joiners: part, State: true}
	})
}

// offerSlots sends the pieces of a call, at least one; the state is that after the last.
func offerSlots[T any](ctx context.Context, s *Semaphore, pool string, all []T, call func([]T) serveArgs) (QueueState, error) {
	if err := checkPool(pool); err != nil {
		return QueueState{}, err
	}
	parts := slices.Collect(slices.Chunk(all, chunk))
	if len(parts) == 0 {
		parts = append(parts, nil)
	}
	var state QueueState
	for _, part := range parts {
		var reply serveReply
		known, err := s.ask(ctx, s.scripts.serve, pool, call(part), &reply)
		if err != nil {
			return QueueState{}, unavailable("offer slots of", pool, err)
		}
		if !known {
			return QueueState{}, nil
		}
		state = QueueState{
			Known: true, Capacity: reply.Capacity, Held: reply.Held, Reserved: reply.Reserved,
			Ready: reply.Ready, Waiting: reply.Waiting, Offers: append(state.Offers, reply.offers()...),
		}
	}
	return state, nil
}

type updateArgs struct {
	Kind   UpdateKind `json:"kind"`
	Device string     `json:"device"`
	Offer  string     `json:"offer,omitempty"` // its id
	Batch  string     `json:"batch"`
}

type offerReply struct {
	Device string   `json:"device"`
	Batch  numbered `json:"batch"`
	Task   numbered `json:"task"`
	Reach  Reach    `json:"reach"`
	ID     numbered `json:"id"`
	Left   int64    `json:"left"`
	Age    int64    `json:"age"`
}

func (r *serveReply) offers() []Offer {
	var offers []Offer
	for _, o := range r.Offers {
		offers = append(offers, Offer{Device: o.Device, Batch: int64(o.Batch), Task: int64(o.Task), Reach: o.Reach, ID: int64(o.ID), Left: millis(o.Left), Age: millis(o.Age)})
	}
	return offers
}

// Queues says in which of these pools somebody waits, and which of those are due to be
// handed on: somebody there was offered a slot, or could be told of one and one is
// free. It takes one round trip (of a Cluster: to each node), another one where somebody
// waits, and no script. Pools of a node that does not answer are left out, with the error.
func (s *Semaphore) Queues(ctx context.Context, pools []string) (waiting, due []string, err error) {
	sizes, failed := s.counts(ctx, pools, func(p redis.Pipeliner, pool string) { p.HLen(ctx, key(pool, "waiter")) })
	for i, n := range sizes {
		if n > 0 {
			waiting = append(waiting, pools[i])
		}
	}
	const each = 3
	of, err := s.counts(ctx, waiting, func(p redis.Pipeliner, pool string) {
		p.ZLexCount(ctx, key(pool, "queue"), "[O|", "(O|~")
		p.ZCard(ctx, key(pool, "contest"))
		p.ZCount(ctx, key(pool, "free"), "0", "0")
	})
	for i, pool := range waiting {
		if offered, told, free := of[each*i], of[each*i+1], of[each*i+2]; offered > 0 || told > 0 && free > 0 {
			due = append(due, pool)
		}
	}
	if failed = cmp.Or(failed, err); failed != nil {
		return waiting, due, fmt.Errorf("reading queues: %w: %w", ErrUnavailable, failed)
	}
	return waiting, due, nil
}

// counts reads numbers of pools in one round trip: 0 where there is no answer, with the error.
func (s *Semaphore) counts(ctx context.Context, pools []string, ask func(redis.Pipeliner, string)) ([]int64, error) {
	if len(pools) == 0 {
		return nil, nil
	}
	asked, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, pool := range pools {
			ask(p, pool)
		}
		return nil
	})
	counts := make([]int64, len(asked))
	for i, one := range asked {
		if n, is := one.(*redis.IntCmd); is {
			counts[i] = n.Val()
		}
	}
	return counts, err //nolint:wrapcheck // by the caller
}

// Offered says in which of these pools a slot is kept for a device, in one
// round trip (of a Cluster: one to each node).
func (s *Semaphore) Offered(ctx context.Context, pools []string, device string) ([]string, error) {
	if len(pools) == 0 {
		return nil, nil
	}
	waiters := make([]*redis.StringCmd, len(pools))
	_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, pool := range pools {
			waiters[i] = p.HGet(ctx, key(pool, "waiter"), device)
		}
		return nil
	})
	var offered []string
	for i, pool := range pools {
		text, failed := waiters[i].Bytes()
		var w waiterReply
		switch {
		case errors.Is(failed, redis.Nil):
		case failed != nil:
			return nil, fmt.Errorf("reading offers: %w: %w", ErrUnavailable, errors.Join(failed, err))
		case json.Unmarshal(text, &w) == nil && w.Offer != 0:
			offered = append(offered, pool)
		}
	}
	return offered, nil
}
