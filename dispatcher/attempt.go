package dispatcher

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/decision"
	"github.com/fleetslots/dispatcher/dispatcher/waiters"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

var (
	// errNoted means that the obstacle is recorded in the attempt, and that another task may start.
	errNoted = errors.New("full or limited")
	// errRepaired means that the obstacle was repaired, and that the same report can be decided again.
	errRepaired = errors.New("decide again")
)

// freshGrant is the time after the request for a grant within which the grant is sent without another read of the ledger.
const freshGrant = time.Second

// mostRepairs is the maximum number of repairs of one attempt.
const mostRepairs = 2

// attempt tries to get the device of a report its next task: the grant that the device holds already, or a
// new grant. It does not write the reply.
type attempt struct {
	d         *Dispatcher
	from      *reporter
	accept    bool              // the device accepts a task
	nameable  bool              // the reply can name the report that it answers
	mentioned map[grantKey]bool // grants that the report mentions
	stopping  bool              // the device runs a task that it has no right to run
	nonce     string            // part of the lease ids of this attempt
	steps     *waiters.Steps    // steps of the handoff that led to the attempt; nil records nothing

	// The fields below record the progress of the attempt. The fields from granted on are its outcome.
	offered   []string                    // pools in which a slot is offered to the device
	full      map[string]bool             // pools without a free slot
	limited   map[int64]decision.Obstacle // obstacles found by policies, by task id
	shut      []string                    // pools in which policies let no task start
	drops     int                         // number of times that it ended tasks that policies drop
	committed string                      // lease id of the committed claim
	granted   *store.Grant                // nil if nothing was granted
	refused   decision.Choice             // why nothing was granted
	needsID   bool                        // the device was refused because the reply cannot name the report
	turn      time.Duration               // time until the queue of a full pool expects the device; 0 if no pool was full
	more      bool                        // the device may have more tasks that policies drop
}

// grantKey is the name that a device has for a grant.
type grantKey struct{ task, token int64 }

// run decides whether the device gets a redelivery, a new grant or a refusal, and carries the decision out.
// The loop ends because each decision after the first takes one more full pool, obstacle or repair into account.
func (a *attempt) run(ctx context.Context) {
	a.findOffers(ctx)
	defer a.giveBack()
	for repairs := 0; ; {
		if err := a.from.countCallers(ctx); err != nil {
			a.cannotConfirm(err)
			return
		}
		choice := decision.Decide(a.situation())
		switch {
		case choice.Reason != devices.ReasonGranted:
			a.refuse(choice)
			a.from.stepAside(ctx, choice)
			return
		case !a.nameable:
			a.needsID = true
			a.refuse(decision.Choice{Reason: devices.ReasonDeclined})
			return
		}
		switch err := a.carryOut(ctx, choice); {
		case err == nil:
			return
		case errors.Is(err, errNoted):
		case errors.Is(err, errRepaired) && repairs < mostRepairs:
			repairs++
		default:
			a.cannotConfirm(err)
			return
		}
	}
}

func (a *attempt) situation() decision.Situation {
	s := decision.Foreseen(a.from.view, a.limited)
	s.Accept, s.Stopping, s.Full, s.Offered = a.accept, a.stopping, a.full, a.offered
	s.Callers = a.from.callers
	s.Mentioned = s.Holding != nil && a.mentioned[grantKey{s.Holding.Task, s.Holding.Token}]
	return s
}

// carryOut carries out a choice to grant something. It returns errNoted or errRepaired if another
// decision may succeed.
func (a *attempt) carryOut(ctx context.Context, choice decision.Choice) (err error) {
	asked := a.d.config.Now()
	if choice.Redeliver {
		err = a.redeliver(ctx)
	} else {
		err = a.grantWithin(ctx, choice.Tasks)
	}
	if err != nil {
		return err
	}
	return a.confirm(ctx, asked)
}

// confirm reads the device again if more than freshGrant has passed since asked: another replica may have
// delivered the grant, and the grant may have ended since then. Most devices drop a grant that they have
// already ended. For all other devices, confirm makes it rare that they receive an ended grant.
func (a *attempt) confirm(ctx context.Context, asked time.Time) error {
	for a.granted != nil && a.d.config.Now().Sub(asked) > freshGrant {
		asked = a.d.config.Now()
		if err := a.from.lookAgain(ctx); err != nil {
			return err
		}
		if g := a.from.view.Grant; g == nil || g.Token != a.granted.Token {
			return errRepaired
		}
	}
	return nil
}

// decideAgain reads the device again, and returns errRepaired.
func (a *attempt) decideAgain(ctx context.Context) error {
	if err := a.from.lookAgain(ctx); err != nil {
		return err
	}
	return errRepaired
}

// grantUsable makes a grant the outcome. If the usable time of the grant is below LeaseMin, it refuses the
// device instead.
func (a *attempt) grantUsable(g store.Grant) {
	if a.d.usable(g) < a.d.config.LeaseMin {
		a.refuse(decision.Choice{Reason: devices.ReasonBusy, Until: g.LeaseUntil})
		return
	}
	a.granted = &g
}

func (a *attempt) refuse(choice decision.Choice) { a.granted, a.refused = nil, choice }

// cannotConfirm refuses the device after an error. If a slot was taken, reconciliation frees it.
func (a *attempt) cannotConfirm(err error) {
	a.d.log.Warn("nothing granted: not confirmed", "err", err)
	a.refuse(decision.Choice{Reason: devices.ReasonUnavailable})
}

// findOffers reads in which pools a slot is offered to the device, because the device should start its task
// there. It reads nothing if the device cannot be notified, if it has work in one pool only, or if the call
// that woke a parked report named the pool.
func (a *attempt) findOffers(ctx context.Context) {
	if a.from.reach() == store.ReachNone || len(a.offered) > 0 || len(a.from.pools()) < 2 {
		return
	}
	offered, err := a.d.Waiters.Offers.FindPools(ctx, a.from.pools(), string(a.from.caller.Device))
	if err != nil {
		a.d.log.WarnContext(ctx, "decided without knowing where a slot is offered", "err", err)
		return
	}
	a.offered = offered
}

// giveBack gives back the slots that were offered to the device in pools where it starts no task. In pools
// where policies let no task start, it also takes a device that polls out of the queue, so that no slot waits
// for the device. The device keeps its turn, because the order does not depend on the time of arrival.
func (a *attempt) giveBack() {
	tell := func(what slots.UpdateKind, pools []string) {
		a.d.Waiters.Offers.Update(string(a.from.caller.Device), what, pools)
	}
	waiting := a.d.Waiters.Pools.AmongWaiting
	tell(slots.WaiterLeft, waiting(a.shut))
	if a.from.reach() == store.ReachNone {
		return
	}
	if started := a.granted; started != nil {
		tell(slots.WaiterAway, slices.DeleteFunc(slices.Clone(a.offered), func(pool string) bool { return pool == started.Pool }))
		return
	}
	switch decision.WaitingOf(a.refused.Reason).Queueing {
	case decision.Keeps: // in a full pool the device is in the queue and has no offer
		tell(slots.WaiterAway, slices.DeleteFunc(slices.Clone(a.offered), func(pool string) bool { return a.full[pool] }))
	case decision.Away:
		tell(slots.WaiterAway, waiting(a.from.pools()))
	case decision.Leaves:
		tell(slots.WaiterLeft, a.offered)
		tell(slots.WaiterLeft, waiting(a.from.pools()))
	}
}
