package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
func (d *Dispatcher) nextTask(ctx context.Context, h *handling) {
	d.findOffers(ctx, h)
	defer d.giveBack(h)
	h.full, h.limited, h.shut = make(map[string]bool), make(map[int64]decision.Obstacle), nil
	for repairs := 0; ; {
		choice := decision.Decide(h.situation())
		switch {
		case choice.Reason != devices.ReasonGranted:
			d.refuse(h, choice)
			return
		case h.caller.Via == devices.ViaSession && h.report.ID == "":
			// A reply that names no report cannot tell its device how old it is.
			h.reply.Code, h.reply.Detail = "id_required", "id: needed over MQTT to be granted anything"
			d.refuse(h, decision.Choice{Reason: devices.ReasonDeclined})
			return
		}
		switch err := d.carryOut(ctx, h, choice); {
		case err == nil:
			return
		case errors.Is(err, errNoted):
		case errors.Is(err, errRepaired) && repairs < mostRepairs:
			repairs++
		default:
			d.cannotConfirm(h, err)
			return
		}
	}
}

func (d *Dispatcher) carryOut(ctx context.Context, h *handling, choice decision.Choice) (err error) {
	asked := d.config.Now()
	if choice.Redeliver {
		err = d.redeliver(ctx, h)
	} else {
		err = d.grantWithin(ctx, h, choice.Tasks)
	}
	if err != nil {
		return err
	}
	return d.confirm(ctx, h, asked)
}

// confirm looks at a grant again that the ledger confirmed some time ago: it may have
// been delivered by another replica and have ended since. Devices drop what they have
// ended; this makes it rare for those that do not.
func (d *Dispatcher) confirm(ctx context.Context, h *handling, asked time.Time) error {
	for h.reply.Task != nil && d.config.Now().Sub(asked) > freshGrant {
		asked = d.config.Now()
		if err := d.lookAgain(ctx, h); err != nil {
			return err
		}
		if g := h.view.Grant; g == nil || g.Token != h.reply.Task.Token {
			return errRepaired
		}
	}
	return nil
}

func (h *handling) situation() decision.Situation {
	return decision.Situation{
		Now:        h.view.Now,
		Standstill: h.view.Standstill,
		Blocked:    h.view.Device.Blocked,
		Accept:     h.report.Accept,
		Stopping:   h.stopping,
		Holding:    h.view.Grant,
		Mentioned:  h.view.Grant != nil && h.mentioned[grantKey{h.view.Grant.Task, h.view.Grant.Token}],
		Candidates: h.view.Candidates,
		Full:       h.full,
		Offered:    h.offered,
		Limited:    h.limited,
	}
}

// cannotConfirm fails closed: the device is told to wait. The slot that may
// have been taken is freed by reconciliation.
func (d *Dispatcher) cannotConfirm(h *handling, err error) {
	d.log.Warn("nothing granted: not confirmed", "err", err)
	d.refuse(h, decision.Choice{Reason: devices.ReasonUnavailable})
}

// grantWithin is grant for what its policies let start. They are asked before a
// slot is, so that no slot waits for them.
func (d *Dispatcher) grantWithin(ctx context.Context, h *handling, open []store.Candidate) error {
	if !policies.Limited(open) {
		return d.grant(ctx, h, open)
	}
	pool := open[0].Pool
	passed, reserved, refused := d.Policies.Reserve(ctx, h.view, open, h.lease, h.nonce)
	maps.Copy(h.limited, refused)
	if len(passed) == 0 {
		h.shut = append(h.shut, pool)
		return errNoted
	}
	h.committed = ""
	err := d.grant(ctx, h, passed)
	if !hadNoEffect(err) { // it is found out later
		d.Policies.Uncounted(pool, reserved)
	} else {
		d.Policies.Settle(ctx, pool, h.committed, reserved)
	}
	return err
}

// grant acquires a slot of the tasks' pool for whichever has its turn, and
// claims that task on it. It returns errNoted or errRepaired when another turn
// may succeed.
func (d *Dispatcher) grant(ctx context.Context, h *handling, open []store.Candidate) error {
	started := d.config.Now()
	open = d.firsts(open)
	pool, device := open[0].Pool, string(h.caller.Device)
	request := slots.Request{Device: device, Wants: h.wants(open), Chance: d.config.Jitter(), Reach: slots.Reach(d.reachOf(h))}
	got, offers, err := d.config.Semaphore.Acquire(ctx, pool, h.pace(d.Waiters.Pace(pool)), []slots.Request{request})
	d.away.semaphore.saw(err, started)
	if err != nil {
		return fmt.Errorf("acquiring a slot of pool %s: %w", pool, err)
	}
	h.steps.Done("acquired", d.config.Now())
	d.Waiters.Offer(pool, offers, started)
	switch got[0].Status {
	case slots.StatusUnknown:
		if err := d.Upkeep.MakeKnown(ctx, pool); err != nil {
			return err
		}
		return errRepaired
	case slots.StatusFull:
		h.lineUp(got[0].After)
		d.Waiters.Pools.Wait(pool)
		h.full[pool] = true
		return errNoted
	}
	c, lease := open[got[0].Want], request.Wants[got[0].Want].Lease
	claim := store.Claim{Task: c.Task, Device: device, Pool: pool, Slot: got[0].Slot, Lease: lease}
	return d.claim(ctx, h, c, acquired{claim, started})
}

// firsts are the first tasks of each batch, which alone decide its turn: of more batches
// than the semaphore takes some, drawn anew with each report.
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
	for i := range firsts[:max(len(firsts)-slots.MaxWants, 0)] {
		other := i + int(d.config.Jitter()*float64(len(firsts)-i))
		firsts[i], firsts[other] = firsts[other], firsts[i]
	}
	return firsts[max(len(firsts)-slots.MaxWants, 0):]
}

// wants are tasks as the semaphore orders them.
func (h *handling) wants(open []store.Candidate) []slots.Want {
	wants := make([]slots.Want, len(open))
	for i, c := range open {
		wants[i] = slots.Want{
			Lease: h.lease(c), TTL: c.Lease,
			Batch: c.Batch, Weight: c.Weight, Priority: c.Priority, Task: c.Task,
		}
	}
	return wants
}

// lease id of a task, should this report be granted it.
func (h *handling) lease(c store.Candidate) string { return decision.LeaseID(c, h.nonce) }

// lineUp notes when the semaphore expects the device again: the earliest time,
// when it stands in the lines of several pools.
func (h *handling) lineUp(after time.Duration) {
	if h.turn == 0 || after < h.turn {
		h.turn = after
	}
}

// claim commits the grant, or gives the slot back. After a COMMIT without an
// answer it does neither: if it went through, the next report finds the grant;
// if not, reconciliation finds the slot.
func (d *Dispatcher) claim(ctx context.Context, h *handling, c store.Candidate, claim acquired) error {
	got, err := d.claiming.Do(ctx, claim.Pool, claim)
	h.steps.Done("claimed", d.config.Now())
	if err == nil && got.late {
		err = fmt.Errorf("the slot came more than %s ago: too late", claimAge)
	}
	if err != nil {
		if hadNoEffect(err) {
			d.Waiters.Return(ctx, claim.Pool, claim.Lease)
		}
		return fmt.Errorf("claiming a slot of pool %s: %w", claim.Pool, err)
	}
	switch got.Status {
	case store.ClaimGranted:
		h.committed = claim.Lease
		d.metrics.granted(c, h.view)
		d.deliver(h, got.Grant)
		return nil
	case store.ClaimConflict:
		d.metrics.conflicted(claim.Pool)
		d.Waiters.Return(ctx, claim.Pool, claim.Lease)
		if _, err := d.Upkeep.ReconcilePool(ctx, claim.Pool); err != nil {
			return err
		}
	default:
		d.Waiters.Return(ctx, claim.Pool, claim.Lease)
	}
	return d.decideAgain(ctx, h)
}

// decideAgain says so after a new look.
func (d *Dispatcher) decideAgain(ctx context.Context, h *handling) error {
	if err := d.lookAgain(ctx, h); err != nil {
		return err
	}
	return errRepaired
}

// redeliver sends the grant that the device holds again: its first reply was
// lost. It returns errRepaired when the grant has ended meanwhile.
func (d *Dispatcher) redeliver(ctx context.Context, h *handling) error {
	held := *h.view.Grant
	if d.usable(held) < d.config.LeaseMin { // counts as no delivery
		d.deliver(h, held)
		return nil
	}
	g, err := d.config.Store.Redeliver(ctx, held.Task, held.Token)
	if errors.Is(err, store.ErrNotFound) {
		return d.decideAgain(ctx, h)
	}
	if err != nil {
		return fmt.Errorf("redelivering a grant of pool %s: %w", held.Pool, err)
	}
	d.deliver(h, g)
	return nil
}

// deliver tells the device of its grant. Too little time left to use it is no
// grant.
func (d *Dispatcher) deliver(h *handling, g store.Grant) {
	usable := d.usable(g)
	if usable < d.config.LeaseMin {
		d.refuse(h, decision.Choice{Reason: devices.ReasonBusy, Until: g.LeaseUntil})
		return
	}
	h.reply.Reason, h.reply.Limited = devices.ReasonGranted, nil
	h.reply.Task = &devices.Task{
		ID: g.Task, Token: g.Token, Pool: g.Pool, Slot: g.Slot, Kind: g.Kind, Payload: g.Payload,
		Attempt: g.Attempt, Redelivered: g.Redelivered, LeaseMS: usable.Milliseconds(),
	}
	h.reply.ReportAfterMS = d.whenReady(g.Pool, g.Kind, usable).Milliseconds()
}
