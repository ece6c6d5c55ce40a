package slots

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// Reach is how a device that waits can be told of a slot.
type Reach int

// The ways to tell a device.
const (
	ReachNone Reach = iota // it polls: nobody can
	ReachPush              // it is woken, over MQTT
	ReachPark              // its request is parked at a replica
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

// News is what became of a waiter, or of the offer to one.
type News struct {
	What   What
	Device string // of all but BatchLeft
	Offer  int64  // its ID; WaiterAway and WaiterLeft are about the device whatever it was offered, with 0
	Batch  int64  // of BatchLeft
}

// What is the kind of a piece of news.
type What string

// The kinds of news.
const (
	OfferSent  What = "sent"   // the device was told of the offer: it is not returned again
	WaiterAway What = "away"   // the device keeps its turn, but is offered nothing until it asks again
	WaiterLeft What = "left"   // the device waits no more
	BatchLeft  What = "closed" // the waiters of a batch wait no more, 200 of each class at most
	AnyMissed  What = "missed" // of no device: offers to parked reports that were not sent for 500 ms are returned, though others were told of them
)

// Line is who waits for a pool at one instant.
type Line struct {
	Known    bool // the pool is known to Redis; false: nothing else is set
	Capacity int
	Held     int
	Reserved int     // slots that are offered
	Ready    int     // in line, can be told of a slot, and was offered none
	Waiting  int     // in line, all of them
	Offers   []Offer // to be sent: new ones, and those of which nobody said that they were
}

// HandOn hears what became of waiters and offers, lets offers lapse whose time
// is over, and offers what is free: at most 100 slots for each 500 pieces of news. A device that lets
// an offer lapse is offered nothing more until it asks.
func (s *Semaphore) HandOn(ctx context.Context, pool string, pace Pace, news []News) (Line, error) {
	var args []newsArgs
	missed := false
	for _, n := range news {
		if err := checkNumbers(n.Offer, n.Batch); err != nil {
			return Line{}, err
		}
		if missed = missed || n.What == AnyMissed; n.What == AnyMissed {
			continue
		}
		of := newsArgs{What: n.What, Device: n.Device, Batch: batchName(n.Batch)}
		if n.Offer != 0 {
			of.Offer = strconv.FormatInt(n.Offer, 10)
		}
		args = append(args, of)
	}
	return handOn(ctx, s, pool, args, func(part []newsArgs) handOnArgs {
		return handOnArgs{Pace: pace.args(), News: part, Missed: missed}
	})
}

// LineUp lets devices wait that do not yet, and does what HandOn does.
func (s *Semaphore) LineUp(ctx context.Context, pool string, pace Pace, seats []Seat) (Line, error) {
	args := make([]seatArgs, len(seats))
	for i, w := range seats {
		if err := errors.Join(checkHolder("-", w.Device), checkOrder(w.Batch, w.Task, w.Weight, w.Priority)); err != nil {
			return Line{}, err
		}
		args[i] = seatArgs{wantArgs: newWaiterArgs(w.Waiter), Device: w.Device, Reach: w.Reach}
	}
	return handOn(ctx, s, pool, args, func(part []seatArgs) handOnArgs { return handOnArgs{Pace: pace.args(), Seats: part} })
}

// handOn sends the pieces of a call, at least one; the line is that after the last.
func handOn[T any](ctx context.Context, s *Semaphore, pool string, all []T, call func([]T) handOnArgs) (Line, error) {
	if err := checkPool(pool); err != nil {
		return Line{}, err
	}
	parts := slices.Collect(slices.Chunk(all, chunk))
	if len(parts) == 0 {
		parts = append(parts, nil)
	}
	var line Line
	for _, part := range parts {
		var reply lineReply
		known, err := s.ask(ctx, s.scripts.handOn, pool, call(part), &reply)
		if err != nil {
			return Line{}, unavailable("hand on in", pool, err)
		}
		if !known {
			return Line{}, nil
		}
		line = Line{
			Known: true, Capacity: reply.Capacity, Held: reply.Held, Reserved: reply.Reserved,
			Ready: reply.Ready, Waiting: reply.Waiting, Offers: append(line.Offers, reply.offers()...),
		}
	}
	return line, nil
}

type handOnArgs struct {
	Pace   paceArgs   `json:"pace"`
	Leases []string   `json:"leases,omitempty"`
	News   []newsArgs `json:"news,omitempty"`
	Missed bool       `json:"missed,omitempty"`
	Seats  []seatArgs `json:"seats,omitempty"`
}

type newsArgs struct {
	What   What   `json:"what"`
	Device string `json:"device"`
	Offer  string `json:"offer,omitempty"` // its id
	Batch  string `json:"batch"`
}

// lineReply is what the scripts that offer slots answer.
type lineReply struct {
	Capacity int              `json:"capacity"`
	Held     int              `json:"held"`
	Reserved int              `json:"reserved"`
	Ready    int              `json:"ready"`
	Waiting  int              `json:"waiting"`
	Freed    list[string]     `json:"freed"`
	Offers   list[offerReply] `json:"offers"`
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

func (r lineReply) offers() []Offer {
	var offers []Offer
	for _, o := range r.Offers {
		offers = append(offers, Offer{Device: o.Device, Batch: int64(o.Batch), Task: int64(o.Task), Reach: o.Reach, ID: int64(o.ID), Left: millis(o.Left), Age: millis(o.Age)})
	}
	return offers
}

// Lines says in which of these pools somebody waits, and which of those are due to be
// handed on: somebody there was offered a slot, or could be told of one and one is
// free. It takes one round trip (of a Cluster: to each node), and no script. What one
// node does not answer is left out, with the error.
func (s *Semaphore) Lines(ctx context.Context, pools []string) (waiting, due []string, err error) {
	if len(pools) == 0 {
		return nil, nil, nil
	}
	type counts struct{ waiting, offered, told, free *redis.IntCmd }
	asked := make([]counts, len(pools))
	_, err = s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, pool := range pools {
			asked[i] = counts{
				waiting: p.HLen(ctx, key(pool, "place")), offered: p.ZLexCount(ctx, key(pool, "line"), "[O|", "(O|~"),
				told: p.ZCard(ctx, key(pool, "contest")), free: p.ZCount(ctx, key(pool, "free"), "0", "0"),
			}
		}
		return nil
	})
	for i, n := range asked {
		if n.waiting.Val() > 0 {
			waiting = append(waiting, pools[i])
			if n.offered.Val() > 0 || n.told.Val() > 0 && n.free.Val() > 0 {
				due = append(due, pools[i])
			}
		}
	}
	if err != nil {
		return waiting, due, fmt.Errorf("reading lines: %w: %w", ErrUnavailable, err)
	}
	return waiting, due, nil
}

// Offered says in which of these pools a slot is kept for a device, in one
// round trip (of a Cluster: one to each node).
func (s *Semaphore) Offered(ctx context.Context, pools []string, device string) ([]string, error) {
	if len(pools) == 0 {
		return nil, nil
	}
	places := make([]*redis.StringCmd, len(pools))
	_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, pool := range pools {
			places[i] = p.HGet(ctx, key(pool, "place"), device)
		}
		return nil
	})
	var offered []string
	for i, pool := range pools {
		text, failed := places[i].Bytes()
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
