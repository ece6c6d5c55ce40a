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

// Semaphore grants the slots of any number of pools. It is safe for concurrent use.
type Semaphore struct {
	client   redis.UniversalClient
	scripts  scripts
	breakers *redisconn.Breakers
}

// New returns a semaphore in the Redis of client, which should have the settings of redisconn.Options.
func New(client redis.UniversalClient) *Semaphore {
	now := time.Now //nolint:forbidigo // measures elapsed time in this process, so no server's clock is needed
	return &Semaphore{client: client, scripts: newScripts(), breakers: redisconn.NewBreakers(client, now)}
}

// Node returns the name of the Redis node that stores the pool. The name is empty behind Sentinel, or if the node is not known.
func (s *Semaphore) Node(ctx context.Context, pool string) (nodeName string) {
	return s.breakers.Node(ctx, NodeKey(pool))
}

// Outages returns how often a Redis node has stopped answering since the start of this process.
func (s *Semaphore) Outages() int64 { return s.breakers.Outages() }

// Request asks for one slot for one of several tasks of a device. The semaphore selects the task.
type Request struct {
	Device string  // must not contain '|'
	Wants  []Want  // 1 to MaxWants tasks, in any order; one of them may get the slot
	Chance float64 // random number in [0,1) that spreads the times at which refused devices ask again
	Reach  Reach   // how the device can be notified of an offer while it waits
}

// MaxWants is the maximum number of tasks in one request.
const MaxWants = 200

// Pace determines the time after which a refused device must ask again. This time is the expected time until the grant of the device, or up to a
// tenth less. It is at least MinWait and at most 3 x ReportPeriod. If the device can be notified, the time is one ReportPeriod longer, and at
// most 8 x ReportPeriod. Fractions of a millisecond are dropped.
//
// LongestSleep raises the maximum for a device far back in its batch. The raised maximum is a tenth of the time after which the device would
// get a grant if only its batch waited. So about ten waiters of a batch ask for each slot that becomes free. Ten are enough even if the
// capacity is raised tenfold or nine of ten devices fail.
type Pace struct {
	MeanHold     time.Duration // mean time for which a slot is held; 0 means unknown
	MinWait      time.Duration // minimum time until a refused device asks again
	ReportPeriod time.Duration // time between two reports of a device; if it is 0, no device waits
	LongestSleep time.Duration // the longest time until a device far back in the queue asks again; 0 raises no maximum
	OfferTTL     time.Duration // how long an offer reserves a slot, a sixth after ten successive unused offers; if it is 0, no offer is sent
}

// Status is the result of a Request.
type Status int

// The results of a Request.
const (
	// StatusUnknown means that Redis does not know the pool. Call Restore.
	StatusUnknown Status = iota
	// StatusFull means that no slot is free for this device. All slots are held, or the free slots are offered to other devices.
	StatusFull
	// StatusAcquired means that the lease holds a slot. This request has acquired it, now or when the same request was sent before.
	StatusAcquired
)

// Acquisition is the answer to one Request.
type Acquisition struct {
	Status    Status
	Slot      int // number of the slot, with StatusAcquired
	WantIndex int // with StatusAcquired, the index of the Want whose lease holds the slot
	// Position is set with StatusFull. It is the estimated number of the grant with which the device gets a
	// slot: 1 is the next grant of the pool.
	Position int
	AskAfter time.Duration // with StatusFull, the time after which the device is to ask again
}

// Exchange is the content of one call for a pool. The call first frees the slots of Leases, and then serves Requests.
type Exchange struct {
	Leases   []string
	Requests []Request
}

// Call is an Exchange with its pool and the Pace of the pool.
type Call struct {
	Exchange

	Pool string
	Pace Pace
}

// ExchangeResult is the result of an Exchange. If Redis does not know the pool, no slot is freed and each answer is StatusUnknown.
type ExchangeResult struct {
	Freed        []bool        // for each element of Exchange.Leases: whether the lease held a slot that this call freed
	Acquisitions []Acquisition // for each element of Exchange.Requests: the answer
	Offers       []Offer       // offers that the caller must send, also to devices that are not in this call (see OfferSlots)
	Err          error         // if it is set, no other field is set
}

// Serve processes the Exchange of each call. First it frees the slots of the leases. Then it offers the freed slots to waiters. Then it gives
// each request, in order, the lowest slot that is neither held nor offered to another device. A refused device waits in the queue of the
// pool until it gets a slot, or until it has not asked again in the time that Pace allows.
//
// A call with at most 500 leases and 500 requests is one atomic step. A larger call is done in several atomic steps. Small calls for pools of
// one Node share a round trip.
//
// After an error, a call may be repeated. If it is not repeated, release all requested leases, because each of them may hold a slot.
//
// Wants and waiters are served in this order. The batch with the lowest quotient held / weight is first. If two quotients are equal, the batch
// with the lower virtual time (lua/batch_order.lua) is first, then the older batch. Inside a batch, the task with the highest priority is
// first, then the oldest task. Urgent batches (Want.LanePercent) come before all other batches while all urgent batches together hold less
// than LanePercent of the capacity.
func (s *Semaphore) Serve(ctx context.Context, calls []Call) []ExchangeResult {
	results, remaining := make([]ExchangeResult, len(calls)), slices.Clone(calls)
	for i, c := range calls {
		results[i].Err = checkRequests(c.Pool, c.Requests)
	}
	for s.sendNextChunks(ctx, remaining, results) {
	}
	return results
}

// sendNextChunks removes the next chunk from each call in remaining, sends these chunks together, and adds the replies to results. It returns
// false if no call had a chunk left.
func (s *Semaphore) sendNextChunks(ctx context.Context, remaining []Call, results []ExchangeResult) (hadChunks bool) {
	var sent []*redisconn.Call
	var parts []Exchange  // the parts that are sent
	var callIndexes []int // for each part, the index of its call
	for i := range remaining {
		if c := &remaining[i]; results[i].Err == nil && len(c.Leases)+len(c.Requests) > 0 {
			part := c.removeNextChunk()
			sent = append(sent, newScriptCall(s.scripts.serve, c.Pool, serveArgs{Pace: c.Pace.toArgs(), Leases: part.Leases, Askers: newAskerArgs(part.Requests)}))
			parts, callIndexes = append(parts, part), append(callIndexes, i)
		}
	}
	if len(sent) == 0 {
		return false
	}
	s.breakers.Run(ctx, maxSends, sent)
	for n, i := range callIndexes {
		if err := results[i].addChunkReply(parts[n], sent[n].Cmd); err != nil {
			results[i] = ExchangeResult{Err: wrapUnavailable("serving", remaining[i].Pool, err)}
		}
	}
	return true
}

// removeNextChunk removes the next chunk from e and returns it. A chunk has at most 500 leases and at most 500
// requests. It has requests only if e has no more leases after it.
func (e *Exchange) removeNextChunk() (part Exchange) {
	n := min(len(e.Leases), chunk)
	part.Leases, e.Leases = e.Leases[:n], e.Leases[n:]
	if len(e.Leases) == 0 {
		m := min(len(e.Requests), chunk)
		part.Requests, e.Requests = e.Requests[:m], e.Requests[m:]
	}
	return part
}

// addChunkReply adds the reply to one chunk of a call to r. part is the chunk, and cmd contains the reply of the script.
func (r *ExchangeResult) addChunkReply(part Exchange, cmd *redis.Cmd) error {
	var reply serveReply
	known, err := decodeReply(cmd, &reply)
	if err == nil && known && len(reply.Answers) != len(part.Requests) {
		err = fmt.Errorf("the reply has %d answers to %d requests", len(reply.Answers), len(part.Requests))
	}
	if err != nil {
		return err
	}
	for _, lease := range part.Leases {
		// reply.Freed lists only the leases that were freed, in the order of part.Leases.
		freed := len(reply.Freed) > 0 && reply.Freed[0] == lease
		if freed {
			reply.Freed = reply.Freed[1:]
		}
		r.Freed = append(r.Freed, freed)
	}
	for i := range part.Requests {
		var got Acquisition
		if i < len(reply.Answers) {
			got = reply.Answers[i].toAcquisition()
		}
		r.Acquisitions = append(r.Acquisitions, got)
	}
	r.Offers = append(r.Offers, reply.offers()...)
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
	Freed   luaList[string]           `json:"freed"`
	Answers luaList[acquisitionReply] `json:"answers"`
	Offers  luaList[struct {
		Device string  `json:"device"`
		Batch  textInt `json:"batch"`
		Task   textInt `json:"task"`
		Reach  Reach   `json:"reach"`
		ID     textInt `json:"id"`
		Left   int64   `json:"left"`
		Age    int64   `json:"age"`
	}] `json:"offers"`
	Capacity int `json:"capacity"` // Capacity and the fields after it are set only with State
	Held     int `json:"held"`
	Reserved int `json:"reserved"`
	Ready    int `json:"ready"`
	Waiting  int `json:"waiting"`
}

type acquisitionReply struct {
	Slot     *int  `json:"slot"`
	Want     int   `json:"want"`
	After    int64 `json:"after"`
	Position int   `json:"position"`
}

func (a acquisitionReply) toAcquisition() Acquisition {
	if a.Slot == nil {
		return Acquisition{Status: StatusFull, Position: a.Position, AskAfter: millisToDuration(a.After)}
	}
	return Acquisition{Status: StatusAcquired, Slot: *a.Slot, WantIndex: a.Want - 1}
}

func newAskerArgs(requests []Request) []askerArgs {
	askers := make([]askerArgs, len(requests))
	for i, r := range requests {
		askers[i] = askerArgs{Device: r.Device, Reach: r.Reach, Chance: min(max(r.Chance, 0), 1), Wants: make([]wantArgs, len(r.Wants))}
		for n, w := range r.Wants {
			askers[i].Wants[n] = newWantArgs(w)
		}
	}
	return askers
}

func (p Pace) toArgs() paceArgs {
	soonest := max(p.MinWait.Milliseconds(), 0)
	period := max(p.ReportPeriod.Milliseconds(), 0)
	if period > 0 {
		period = max(period, soonest)
	}
	return paceArgs{
		Hold: max(p.MeanHold.Milliseconds(), 0), Soonest: soonest, Period: period, Sleep: max(p.LongestSleep.Milliseconds(), 0),
		Offer: max(p.OfferTTL.Milliseconds(), 0),
	}
}

func checkRequests(pool string, requests []Request) error {
	if err := checkPoolName(pool); err != nil {
		return err
	}
	for _, r := range requests {
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

func checkWant(device string, want Want) error {
	if err := checkHolderNames(want.Lease, device); err != nil {
		return err
	}
	if want.TTL < time.Millisecond {
		return fmt.Errorf("%w: ttl %s of lease %s is below 1 ms", ErrInvalid, want.TTL, want.Lease)
	}
	return checkOrderNumbers(want.Batch, want.Task, want.Weight, want.Priority, want.LanePercent)
}

// checkOrderNumbers returns ErrInvalid if one of the numbers by which a script sorts tasks is out of range.
func checkOrderNumbers(batchID, taskID int64, weight, priority, lanePercent int) error {
	if weight < 0 || weight > 1<<20 || priority < -1<<30 || priority > 1<<30 || lanePercent < 0 || lanePercent > 100 {
		return fmt.Errorf("%w: weight %d, priority %d or lane percentage %d is out of range", ErrInvalid, weight, priority, lanePercent)
	}
	return checkExactInts(batchID, taskID)
}

func checkExactInts(numbers ...int64) error {
	for _, n := range numbers {
		if n < 0 || n > maxExactInt {
			return fmt.Errorf("%w: number %d is not between 0 and 2^53", ErrInvalid, n)
		}
	}
	return nil
}

// checkPoolName returns ErrInvalid if the name would break the hash tag in the Redis keys of the pool.
func checkPoolName(pool string) error {
	if pool == "" || strings.ContainsAny(pool, "{}") {
		return fmt.Errorf("%w: pool name %q is empty or contains a brace", ErrInvalid, pool)
	}
	return nil
}

// checkHolderNames returns ErrInvalid if a name is empty, or would break the text in which Redis stores a holder (lua/core.lua).
func checkHolderNames(leaseID, deviceID string) error {
	if leaseID == "" || deviceID == "" || strings.Contains(leaseID+deviceID, "|") {
		return fmt.Errorf("%w: lease %q or device %q is empty or contains '|'", ErrInvalid, leaseID, deviceID)
	}
	return nil
}

func millisToDuration(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
