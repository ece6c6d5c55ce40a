package slots

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// Reach is how a device that waits can be told of a place.
type Reach int

// The ways to tell a device.
const (
	ReachNone Reach = iota // it polls: nobody can
	ReachPush              // it is woken, over MQTT
	ReachPark              // its request is parked at a replica
)

// Offer is a free place that is reserved for a waiter. It permits nothing: its
// device asks, and acquires. Nobody else gets the place while it lasts.
type Offer struct {
	Device      string
	Batch, Task int64 // what it waits with
	Reach       Reach
	ID          int64         // names this offer; a later one to the same device has another
	Left        time.Duration // how long the place stays reserved
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
type What int

// The kinds of news.
const (
	OfferSent  What = iota // the device was told of the offer: it is not returned again
	WaiterAway             // the device keeps its place in line, but is offered nothing until it asks again
	WaiterLeft             // the device leaves the line
	BatchLeft              // the waiters of a batch leave the line, up to 2,000 in one call
	AnyMissed              // of no device: offers to parked reports that were not sent for 500 ms are returned, though others were told of them
)

// Seat is a device that is to stand in line without having asked.
type Seat struct {
	Waiter
	Reach Reach
}

// Line is who waits for a pool at one instant.
type Line struct {
	Known    bool // the pool is known to Redis; false: nothing else is set
	Capacity int
	Held     int
	Reserved int     // places kept for who was offered them
	Ready    int     // in line, can be told of a place, and was offered none
	Waiting  int     // in line, all of them
	Offers   []Offer // to be sent: new ones, and those of which nobody said that they were
}

// HandOn hears what became of waiters and offers, lets offers lapse whose time
// is over, and offers what is free: at most 100 places in one call. Who lets an
// offer lapse is offered nothing more until it asks.
func (s *Semaphore) HandOn(ctx context.Context, pool string, pace Pace, news []News) (Line, error) {
	return handOn(ctx, s, pool, news, func(part []News) (*redis.Script, []any, error) {
		args := pace.args()
		for _, n := range part {
			if err := checkNumbers(n.Offer, n.Batch); err != nil {
				return nil, nil, err
			}
			args = append(args, int(n.What), n.Device, n.Offer, n.Batch)
		}
		return s.scripts.handOn, args, nil
	})
}

// LineUp lets devices stand in line that do not yet, and does what HandOn does.
func (s *Semaphore) LineUp(ctx context.Context, pool string, pace Pace, seats []Seat) (Line, error) {
	return handOn(ctx, s, pool, seats, func(part []Seat) (*redis.Script, []any, error) {
		args := pace.args()
		for _, w := range part {
			if err := errors.Join(checkHolder("-", w.Device), checkOrder(w.Batch, w.Task, w.Weight, w.Priority)); err != nil {
				return nil, nil, err
			}
			args = append(args, w.Device, w.Batch, max(w.Weight, 1), w.Priority, w.Task, int(w.Reach))
		}
		return s.scripts.seat, args, nil
	})
}

// handOn sends the pieces of a call, at least one; the line is that after the last.
func handOn[T any](ctx context.Context, s *Semaphore, pool string, all []T, call func([]T) (*redis.Script, []any, error)) (Line, error) {
	if err := checkPool(pool); err != nil {
		return Line{}, err
	}
	parts := slices.Collect(slices.Chunk(all, chunk))
	if len(parts) == 0 {
		parts = append(parts, nil)
	}
	var line Line
	for _, part := range parts {
		script, args, err := call(part)
		if err != nil {
			return Line{}, err
		}
		reply, offers, err := s.offering(ctx, script, pool, args, stateParts)
		if err != nil {
			return Line{}, unavailable("hand on in", pool, err)
		}
		if len(reply) == 0 {
			return Line{}, nil
		}
		line = Line{
			Known: true, Capacity: int(reply[0]), Held: int(reply[1]), Reserved: int(reply[2]),
			Ready: int(reply[3]), Waiting: int(reply[4]), Offers: append(line.Offers, offers...),
		}
	}
	return line, nil
}

// stateParts is how many numbers the scripts return before the offers.
const stateParts = 5

// Lines says in which of these pools somebody stands in line, and which of those
// are due to be handed on: somebody there was offered a place, or could be told of
// one and one is free. It takes two round trips (of a Cluster: to each node), and
// no script. What one node does not answer is left out, with the error.
func (s *Semaphore) Lines(ctx context.Context, pools []string) (waiting, due []string, err error) {
	inLine := func(p redis.Pipeliner, pool string) *redis.IntCmd { return p.ZCard(ctx, key(pool, "line")) }
	told := func(p redis.Pipeliner, pool string) *redis.IntCmd {
		return p.Exists(ctx, key(pool, "offer"), key(pool, "ready"))
	}
	offers := func(p redis.Pipeliner, pool string) *redis.IntCmd { return p.ZCard(ctx, key(pool, "offer")) }
	free := func(p redis.Pipeliner, pool string) *redis.IntCmd {
		return p.ZCount(ctx, key(pool, "free_at"), "0", "0")
	}

	counts, err := s.count(ctx, pools, inLine, told)
	var reachable []string
	for i, n := range counts {
		if n[0] > 0 {
			waiting = append(waiting, pools[i])
			if n[1] > 0 {
				reachable = append(reachable, pools[i])
			}
		}
	}
	if err == nil {
		counts, err = s.count(ctx, reachable, offers, free)
		for i, n := range counts {
			if n[0]+n[1] > 0 {
				due = append(due, reachable[i])
			}
		}
	}
	if err != nil {
		return waiting, due, fmt.Errorf("reading lines: %w: %w", ErrUnavailable, err)
	}
	return waiting, due, nil
}

// count asks for two numbers of each pool; those that are not answered are 0.
func (s *Semaphore) count(ctx context.Context, pools []string, first, second func(p redis.Pipeliner, pool string) *redis.IntCmd) ([][2]int64, error) {
	if len(pools) == 0 {
		return nil, nil
	}
	asked, counts := make([][2]*redis.IntCmd, len(pools)), make([][2]int64, len(pools))
	_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, pool := range pools {
			asked[i] = [2]*redis.IntCmd{first(p, pool), second(p, pool)}
		}
		return nil
	})
	for i, of := range asked {
		counts[i] = [2]int64{of[0].Val(), of[1].Val()}
	}
	return counts, err
}

// Offered says in which of these pools a place is kept for a device, in one
// round trip (of a Cluster: one to each node).
func (s *Semaphore) Offered(ctx context.Context, pools []string, device string) ([]string, error) {
	if len(pools) == 0 {
		return nil, nil
	}
	until := make([]*redis.FloatCmd, len(pools))
	_, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, pool := range pools {
			until[i] = p.ZScore(ctx, key(pool, "offer"), device)
		}
		return nil
	})
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("reading offers: %w: %w", ErrUnavailable, err)
	}
	var offered []string
	for i, pool := range pools {
		if until[i].Err() == nil {
			offered = append(offered, pool)
		}
	}
	return offered, nil
}

// offering runs a script that returns so many numbers, or nothing, and then offers.
func (s *Semaphore) offering(ctx context.Context, script *redis.Script, pool string, args []any, numbers int) ([]int64, []Offer, error) {
	reply, err := s.run(ctx, script, pool, args...).Slice()
	if err != nil {
		return nil, nil, err
	}
	if len(reply) == 0 {
		return nil, nil, nil
	}
	if len(reply) < numbers || (len(reply)-numbers)%offerParts != 0 {
		return nil, nil, fmt.Errorf("reply of %d parts, want %d and offers", len(reply), numbers)
	}
	out := make([]int64, numbers)
	for i, part := range reply[:numbers] {
		n, ok := part.(int64)
		if !ok {
			return nil, nil, fmt.Errorf("reply begins %v", reply[:numbers])
		}
		out[i] = n
	}
	var offers []Offer
	for part := range slices.Chunk(reply[numbers:], offerParts) {
		offer, err := parseOffer(part)
		if err != nil {
			return nil, nil, err
		}
		offers = append(offers, offer)
	}
	return out, offers, nil
}

// offerParts is how many parts an offer has in a reply: device, batch, task,
// reach, id, ms left, ms since it was made.
const offerParts = 7

func parseOffer(part []any) (Offer, error) {
	device, ok1 := part[0].(string)
	batch, err1 := number(part[1])
	task, err2 := number(part[2])
	reach, ok2 := part[3].(int64)
	id, err3 := number(part[4])
	left, ok3 := part[5].(int64)
	age, ok4 := part[6].(int64)
	if errors.Join(err1, err2, err3) != nil || !ok1 || !ok2 || !ok3 || !ok4 {
		return Offer{}, fmt.Errorf("offer %v", part)
	}
	return Offer{Device: device, Batch: batch, Task: task, Reach: Reach(reach), ID: id, Left: millis(left), Age: millis(age)}, nil
}
