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

	"github.com/fleetslots/dispatcher/internal/reach"
)

// Reach is the way in which a waiting device can be notified of an offer.
type Reach = reach.Reach

// The ways to notify a device.
const (
	ReachNone = reach.None
	ReachPush = reach.Push
	ReachPark = reach.Park
)

// Offer is a free slot that is reserved for a waiting device. An offer is no grant: the device must ask for the slot. A slot that is kept for
// a poller (lua/queue.lua) is also an offer, but it is not sent: OfferSlots does not return it.
type Offer struct {
	Device      string
	Batch, Task int64 // batch and task that the device waits with
	Reach       Reach
	ID          int64         // id of this offer; a later offer to the same device has another id
	Left        time.Duration // how long the slot stays reserved
	Age         time.Duration // time since the offer was made
}

// Update reports a change of a waiter (a waiting device) or of its offer.
type Update struct {
	Kind   UpdateKind
	Device string // the device; unused for BatchLeft, BatchOpened and ResendParkedOffers
	// Offer is the ID of the offer. If it is 0, WaiterPassedOver and WaiterLeft apply to any offer of the device.
	Offer int64
	Batch int64 // the batch; only for BatchLeft and BatchOpened
}

// UpdateKind is the kind of an update.
type UpdateKind string

// The kinds of update.
const (
	OfferSent        UpdateKind = "sent"   // the device was notified of the offer: the offer is not returned again
	WaiterPassedOver UpdateKind = "away"   // the device is busy, gone or refused: it stays in the queue, but gets no offer until it asks
	WaiterLeft       UpdateKind = "left"   // the device leaves the queue
	BatchLeft        UpdateKind = "closed" // no task of the batch may start: its waiters leave the queue or get no offers
	BatchOpened      UpdateKind = "opened" // tasks of the batch may start again: its waiters get offers
	// ResendParkedOffers makes OfferSlots return again the unsent offers for parked reports that are at least 500 ms old. The replica that
	// has parked such a report may have missed its offer.
	ResendParkedOffers UpdateKind = "missed"
)

// QueueState is the state of the queue of a pool at one instant.
type QueueState struct {
	PoolKnown  bool // whether Redis knows the pool; if false, no other field is set
	Capacity   int
	Held       int     // number of held slots
	Reserved   int     // number of offered slots
	Notifiable int     // number of waiters (waiting devices) that can be notified and have no offer
	Waiting    int     // number of all waiters
	Offers     []Offer // offers to send: new offers and, again every 500 ms, offers for which no update OfferSent has arrived
}

// OfferSlots applies the updates, ends lapsed offers, and offers free slots. It offers at most 100 slots, and 100 more for each further 500
// updates. A device whose offer has lapsed gets no other offer until it asks again. A slot can still be kept for this device until its next
// report.
func (s *Semaphore) OfferSlots(ctx context.Context, pool string, pace Pace, updates []Update) (QueueState, error) {
	var args []updateArgs
	missed := false
	for _, update := range updates {
		if err := checkExactInts(update.Offer, update.Batch); err != nil {
			return QueueState{}, err
		}
		if missed = missed || update.Kind == ResendParkedOffers; update.Kind == ResendParkedOffers {
			continue
		}
		arg := updateArgs{Kind: update.Kind, Device: update.Device, Batch: formatBatchID(update.Batch)}
		if update.Offer != 0 {
			arg.Offer = strconv.FormatInt(update.Offer, 10)
		}
		args = append(args, arg)
	}
	return offerSlots(ctx, s, pool, args, func(part []updateArgs) serveArgs {
		return serveArgs{Pace: pace.toArgs(), Updates: part, Missed: missed, State: true}
	})
}

// Join adds devices to the queue, ends lapsed offers and offers free slots.
func (s *Semaphore) Join(ctx context.Context, pool string, pace Pace, joiners []Joiner) (QueueState, error) {
	args := make([]joinerArgs, len(joiners))
	for i, joiner := range joiners {
		if err := errors.Join(checkHolderNames("-", joiner.Device), checkOrderNumbers(joiner.Batch, joiner.Task, joiner.Weight, joiner.Priority, joiner.LanePercent)); err != nil {
			return QueueState{}, err
		}
		args[i] = joinerArgs{wantArgs: newWantArgs(joiner.Want), Device: joiner.Device, Reach: joiner.Reach}
	}
	return offerSlots(ctx, s, pool, args, func(part []joinerArgs) serveArgs {
		return serveArgs{Pace: pace.toArgs(), Joiners: part, State: true}
	})
}

// offerSlots runs lua/serve.lua once for each chunk of elements (updates or joiners). If elements is empty, it runs the script once, with an
// empty chunk. It returns the state after the last run, with the offers of all runs.
func offerSlots[Element any](ctx context.Context, semaphore *Semaphore, pool string, elements []Element, buildArgs func(chunk []Element) serveArgs) (QueueState, error) {
	if err := checkPoolName(pool); err != nil {
		return QueueState{}, err
	}
	parts := slices.Collect(slices.Chunk(elements, chunk))
	if len(parts) == 0 {
		parts = append(parts, nil)
	}
	var state QueueState
	for _, part := range parts {
		var reply serveReply
		known, err := semaphore.runAndDecode(ctx, semaphore.scripts.serve, pool, buildArgs(part), &reply)
		if err != nil {
			return QueueState{}, wrapUnavailable("offering slots of", pool, err)
		}
		if !known {
			return QueueState{}, nil
		}
		state = QueueState{
			PoolKnown: true, Capacity: reply.Capacity, Held: reply.Held, Reserved: reply.Reserved,
			Notifiable: reply.Ready, Waiting: reply.Waiting, Offers: append(state.Offers, reply.offers()...),
		}
	}
	return state, nil
}

type updateArgs struct {
	Kind   UpdateKind `json:"kind"`
	Device string     `json:"device"`
	Offer  string     `json:"offer,omitempty"` // id of the offer
	Batch  string     `json:"batch"`
}

func (r *serveReply) offers() []Offer {
	var offers []Offer
	for _, o := range r.Offers {
		offers = append(offers, Offer{Device: o.Device, Batch: int64(o.Batch), Task: int64(o.Task), Reach: o.Reach, ID: int64(o.ID), Left: millisToDuration(o.Left), Age: millisToDuration(o.Age)})
	}
	return offers
}

// FindWaitingPools returns the pools that have waiters, and the pools that need a call of OfferSlots. A pool needs this call if it has an
// offer, or if it has a free slot and a waiter that can be notified. The other pools need it only to remove waiters that no longer report.
// FindWaitingPools needs at most two round trips to each node. If a node does not answer, its pools are left out, and err is set.
func (s *Semaphore) FindWaitingPools(ctx context.Context, pools []string) (waiting, needOffers []string, err error) {
	sizes, failed := readEachPool(ctx, s, pools, func(p redis.Pipeliner, pool string) *redis.IntCmd { return p.HLen(ctx, poolKey(pool, "waiter")) })
	for _, pool := range pools {
		if size := sizes[pool]; size != nil && size.Val() > 0 {
			waiting = append(waiting, pool)
		}
	}
	type counts struct{ offered, notifiable, free *redis.IntCmd }
	each, err := readEachPool(ctx, s, waiting, func(p redis.Pipeliner, pool string) *counts {
		return &counts{
			offered:    p.ZLexCount(ctx, poolKey(pool, "queue"), "[O|", "(O|~"),
			notifiable: p.ZCard(ctx, poolKey(pool, "contest")),
			free:       p.ZCount(ctx, poolKey(pool, "free"), "0", "0"),
		}
	})
	for _, pool := range waiting {
		if n := each[pool]; n != nil && (n.offered.Val() > 0 || n.notifiable.Val() > 0 && n.free.Val() > 0) {
			needOffers = append(needOffers, pool)
		}
	}
	if failed = errors.Join(failed, err); failed != nil {
		return waiting, needOffers, fmt.Errorf("reading queues: %w: %w", ErrUnavailable, failed)
	}
	return waiting, needOffers, nil
}

// readEachPool calls addCommands for each pool, and sends the added commands in one pipeline to each node. commands holds the results of
// addCommands by pool. If a node did not answer a moment ago, readEachPool sends it nothing, and commands lacks the pools of the node. err is
// set if a command failed. A pipeline is sent only once, so that a node that hangs leaves callers time for the other nodes.
func readEachPool[Commands any](ctx context.Context, s *Semaphore, pools []string, addCommands func(pipe redis.Pipeliner, pool string) Commands) (commands map[string]Commands, err error) {
	byNode := make(map[string][]string)
	for _, pool := range pools {
		node := s.Node(ctx, pool)
		byNode[node] = append(byNode[node], pool)
	}
	commands = make(map[string]Commands, len(pools))
	for _, poolsOfNode := range byNode {
		failed := s.breakers.Do(ctx, NodeKey(poolsOfNode[0]), 1, func() error {
			_, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
				for _, pool := range poolsOfNode {
					commands[pool] = addCommands(pipe, pool)
				}
				return nil
			})
			return err
		})
		err = errors.Join(err, failed)
	}
	return commands, err
}

// PoolsWithOffer returns the elements of pools that have an offer for the device, even a lapsed one. It needs one round trip to each node.
func (s *Semaphore) PoolsWithOffer(ctx context.Context, pools []string, device string) (poolsWithOffer []string, err error) {
	waiters, err := readEachPool(ctx, s, pools, func(p redis.Pipeliner, pool string) *redis.SliceCmd {
		return p.HMGet(ctx, poolKey(pool, "waiter"), device)
	})
	if err != nil {
		return nil, fmt.Errorf("reading offers: %w: %w", ErrUnavailable, err)
	}
	for _, pool := range pools {
		var w waiterReply
		if text, waits := waiters[pool].Val()[0].(string); waits && json.Unmarshal([]byte(text), &w) == nil && w.Offer != 0 {
			poolsWithOffer = append(poolsWithOffer, pool)
		}
	}
	return poolsWithOffer, nil
}
