package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/policies"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

var (
	// errNoted: what stands in the way is noted with the report; another task may start.
	errNoted = errors.New("full or limited")
	// errRepaired: what stood in the way was repaired.
	errRepaired = errors.New("decide again")
)

// freshGrant is how long a grant is sent after it was asked for without another look.
const freshGrant = time.Second

// mostRepairs bounds how often one report is decided again after a repair.
const mostRepairs = 2

// nextTask decides what the device does now and makes it true: a redelivery, a
// new grant, or a refusal with a time. Each further turn knows one full pool or
// one repair more, so it ends.
func (h *handling) nextTask(ctx context.Context) {
	h.findOffers(ctx)
	defer h.giveBack()
	h.tried.full, h.tried.limited, h.tried.shut = make(map[string]bool), make(map[int64]decision.Obstacle), nil
	h.tried.drops, h.tried.more = 0, false
	for repairs := 0; ; {
		if err := h.countCallers(ctx); err != nil {
			h.cannotConfirm(err)
			return
		}
		choice := decision.Decide(h.situation())
		switch {
		case choice.Reason != devices.ReasonGranted:
			h.refuse(choice)
			h.stepAside(ctx, choice)
			return
		case h.caller.Via == devices.ViaSession && h.report.ID == "":
			// A reply that names no report cannot tell its device how old it is.
			h.reply.Code, h.reply.Detail = "id_required", "id: needed over MQTT to be granted anything"
			h.refuse(decision.Choice{Reason: devices.ReasonDeclined})
			return
		}
		switch err := h.carryOut(ctx, choice); {
		case err == nil:
			return
		case errors.Is(err, errNoted):
		case errors.Is(err, errRepaired) && repairs < mostRepairs:
			repairs++
		default:
			h.cannotConfirm(err)
			return
		}
	}
}

// countCallers reads how many slots callers hold, for one of them.
func (h *handling) countCallers(ctx context.Context) error {
	h.callers = nil // of an earlier turn
	if h.caller.Via != devices.ViaLease || len(h.view.Candidates) == 0 {
		return nil
	}
	c := h.view.Candidates[0] // a holder has one
	found, err := h.d.config.Store.CallersBefore(ctx, c.Pool, c.Task)
	h.callers = &found
	return err //nolint:wrapcheck // the store says what it was doing
}

// stepAside lets the callers behind this one go first if it is refused for a reason of its own: from
// then on it does not count for the bound of callers.
func (h *handling) stepAside(ctx context.Context, refused decision.Choice) {
	h.own = refused.Own && h.callers != nil && h.callers.Bound != nil
	if !h.own {
		return
	}
	h.aside = true
	c := h.view.Candidates[0]
	stood, err := h.d.config.Store.StepAside(ctx, c.Task)
	if err != nil {
		h.d.log.WarnContext(ctx, "callers wait behind one that cannot start", "pool", c.Pool, "err", err)
	}
	if stood {
		h.d.Waiters.Relay.WakeCallers(c.Pool)
	}
}

func (h *handling) carryOut(ctx context.Context, choice decision.Choice) (err error) {
	asked := h.d.config.Now()
	if choice.Redeliver {
		err = h.redeliver(ctx)
	} else {
		err = h.grantWithin(ctx, choice.Tasks)
	}
	if err != nil {
		return err
	}
	return h.confirm(ctx, asked)
}

// confirm looks at a grant again that the ledger confirmed some time ago: it may have
// been delivered by another replica and have ended since. Devices drop what they have
// ended; this makes it rare for those that do not.
func (h *handling) confirm(ctx context.Context, asked time.Time) error {
	for h.reply.Task != nil && h.d.config.Now().Sub(asked) > freshGrant {
		asked = h.d.config.Now()
		if err := h.lookAgain(ctx); err != nil {
			return err
		}
		if g := h.view.Grant; g == nil || g.Token != h.reply.Task.Token {
			return errRepaired
		}
	}
	return nil
}

func (h *handling) situation() decision.Situation {
	s := decision.Foreseen(h.view, h.tried.limited)
	s.Accept, s.Stopping, s.Full, s.Offered = h.report.Accept, h.stopping, h.tried.full, h.tried.offered
	s.Callers = h.callers
	s.Mentioned = s.Holding != nil && h.mentioned[grantKey{s.Holding.Task, s.Holding.Token}]
	return s
}

// cannotConfirm fails closed: the device is told to wait. The slot that may
// have been taken is freed by reconciliation.
func (h *handling) cannotConfirm(err error) {
	h.d.log.Warn("nothing granted: not confirmed", "err", err)
	h.refuse(decision.Choice{Reason: devices.ReasonUnavailable})
}

// grantWithin is grant for what its policies let start. They are asked before a
// slot is, so that no slot waits for them.
func (h *handling) grantWithin(ctx context.Context, open []store.Candidate) error {
	if !policies.Limited(open) {
		return h.grant(ctx, open)
	}
	pool := open[0].Pool
	passed, reserved, refused := h.d.Policies.Reserve(ctx, h.view, open, h.lease, h.nonce)
	maps.Copy(h.tried.limited, refused)
	suppressed := h.suppress(ctx, open, refused)
	if len(passed) == 0 {
		return h.shut(ctx, pool, suppressed)
	}
	h.tried.committed = ""
	err := h.grant(ctx, passed)
	if !hadNoEffect(err) { // it is found out later
		h.d.Policies.Uncounted(pool, reserved)
	} else {
		h.d.Policies.Settle(ctx, pool, h.tried.committed, reserved)
	}
	return err
}

// grant acquires a slot of the tasks' pool for whichever has its turn, and
// claims that task on it. It returns errNoted or errRepaired when another turn
// may succeed.
func (h *handling) grant(ctx context.Context, open []store.Candidate) error {
	started := h.d.config.Now()
	open = h.d.firsts(open)
	pool, device := open[0].Pool, string(h.caller.Device)
	request := slots.Request{Device: device, Wants: h.wants(open), Chance: h.d.config.Jitter(), Reach: h.reachOf()}
	got, err := h.d.Waiters.Slots.Acquire(ctx, pool, h.period(), request)
	h.d.away.semaphore.saw(err, started)
	if err != nil {
		return fmt.Errorf("acquiring a slot of pool %s: %w", pool, err)
	}
	h.steps.Done("acquired", h.d.config.Now())
	switch got.Status {
	case slots.StatusUnknown:
		if err := h.d.Upkeep.MakeKnown(ctx, pool); err != nil {
			return err
		}
		return errRepaired
	case slots.StatusFull:
		h.tried.expect(got.After)
		h.d.Waiters.Pools.Wait(pool)
		h.tried.full[pool] = true
		return errNoted
	}
	c, lease := open[got.Want], request.Wants[got.Want].Lease
	claim := store.Claim{Task: c.Task, Device: device, Pool: pool, Slot: got.Slot, Lease: lease}
	return h.claim(ctx, c, acquired{claim, started})
}

// firsts are the first tasks of each batch, which alone decide its turn: of more batches
// than the semaphore takes the urgent ones and some, drawn anew with each report.
func (d *Dispatcher) firsts(open []store.Candidate) []store.Candidate {
	of := make(map[int64]int)
	var firsts []store.Candidate
	for _, c := range open {
		i, known := of[c.Batch]
		if !known {
			i, of[c.Batch] = len(firsts), len(firsts)
			firsts = append(firsts, c)
		}
		if decision.Sooner(c, firsts[i]) {
			firsts[i] = c
		}
	}
	dropped := max(len(firsts)-slots.MaxWants, 0)
	if dropped == 0 {
		return firsts
	}
	slices.SortStableFunc(firsts, decision.UrgentLast)
	normal := len(firsts) // those that may be drawn
	for normal > dropped && firsts[normal-1].Urgent {
		normal--
	}
	for i := range dropped {
		other := i + int(d.config.Jitter()*float64(normal-i))
		firsts[i], firsts[other] = firsts[other], firsts[i]
	}
	return firsts[dropped:]
}

// laneOf returns the part of a pool, in percent, for which the batch of a task goes before all other batches.
// It is urgentShare for an urgent batch, else 0.
func laneOf(c store.Candidate, urgentShare int) int {
	if c.Urgent {
		return urgentShare
	}
	return 0
}

// wants are tasks as the semaphore orders them.
func (h *handling) wants(open []store.Candidate) []slots.Want {
	wants := make([]slots.Want, len(open))
	for i, c := range open {
		wants[i] = slots.Want{
			Lease: h.lease(c), TTL: c.Lease,
			Batch: c.Batch, Weight: c.Weight, Lane: laneOf(c, h.d.config.UrgentShare), Priority: c.Priority, Task: c.Task,
		}
	}
	return wants
}

// lease id of a task, should this report be granted it.
func (h *handling) lease(c store.Candidate) string { return decision.LeaseID(c, h.nonce) }

// claim commits the grant, or gives the slot back. After a COMMIT without an
// answer it does neither: if it went through, the next report finds the grant;
// if not, reconciliation finds the slot.
func (h *handling) claim(ctx context.Context, c store.Candidate, claim acquired) error {
	got, err := h.d.claim(ctx, claim)
	h.steps.Done("claimed", h.d.config.Now())
	if err == nil && got.late {
		err = fmt.Errorf("the slot came more than %s ago: too late", claimAge)
	}
	if err != nil {
		if hadNoEffect(err) {
			h.d.Waiters.Slots.Return(ctx, claim.Pool, claim.Lease)
		}
		return fmt.Errorf("claiming a slot of pool %s: %w", claim.Pool, err)
	}
	switch got.Status {
	case store.ClaimGranted:
		h.tried.committed = claim.Lease
		h.d.metrics.granted(c, h.view)
		h.deliver(got.Grant)
		return nil
	case store.ClaimConflict:
		h.d.metrics.conflicted(claim.Pool)
		h.d.Waiters.Slots.Return(ctx, claim.Pool, claim.Lease)
		if _, err := h.d.Upkeep.ReconcilePool(ctx, claim.Pool); err != nil {
			return err
		}
	default:
		h.d.Waiters.Slots.Return(ctx, claim.Pool, claim.Lease)
	}
	return h.decideAgain(ctx)
}

// decideAgain says so after a new look.
func (h *handling) decideAgain(ctx context.Context) error {
	if err := h.lookAgain(ctx); err != nil {
		return err
	}
	return errRepaired
}

// redeliver sends the grant that the device holds again: its first reply was
// lost. It returns errRepaired when the grant has ended meanwhile.
func (h *handling) redeliver(ctx context.Context) error {
	held := *h.view.Grant
	if h.d.usable(held) < h.d.config.LeaseMin { // counts as no delivery
		h.deliver(held)
		return nil
	}
	g, err := h.d.config.Store.Redeliver(ctx, held.Task, held.Token)
	if errors.Is(err, store.ErrNotFound) {
		return h.decideAgain(ctx)
	}
	if err != nil {
		return fmt.Errorf("redelivering a grant of pool %s: %w", held.Pool, err)
	}
	h.deliver(g)
	return nil
}

// deliver tells the device of its grant. Too little time left to use it is no
// grant.
func (h *handling) deliver(g store.Grant) {
	usable := h.d.usable(g)
	if usable < h.d.config.LeaseMin {
		h.refuse(decision.Choice{Reason: devices.ReasonBusy, Until: g.LeaseUntil})
		return
	}
	h.reply.Reason, h.reply.Limited = devices.ReasonGranted, nil
	h.reply.Task = &devices.Task{
		ID: g.Task, Token: g.Token, Pool: g.Pool, Slot: g.Slot, Kind: g.Kind, Payload: g.Payload,
		Attempt: g.Attempt, Redelivered: g.Redelivered, LeaseMS: usable.Milliseconds(),
	}
	h.reply.ReportAfterMS = h.d.whenReady(g.Pool, g.Kind, usable).Milliseconds()
}
