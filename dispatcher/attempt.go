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
	// errObstacleRecorded means that the attempt met an obstacle (such as a full pool) and recorded it. The attempt may try another task.
	errObstacleRecorded = errors.New("full or limited")
	// errRepaired means that the cause of the failure was repaired. The attempt must decide again about the same report.
	errRepaired = errors.New("decide again")
)

// maxUnconfirmedAge is the maximum time between the request for a grant and its delivery. After a longer time, the ledger is read again
// before the grant is delivered.
const maxUnconfirmedAge = time.Second

// maxRepairs is the maximum number of times that one attempt repairs an obstacle and decides again.
const maxRepairs = 2

// grantAttempt tries to answer a report with a task. It takes the task of the grant that the device holds, or makes a new grant. It does not
// write the reply.
type grantAttempt struct {
	d             *Dispatcher
	reporter      *reporter
	acceptsTask   bool
	canNameReport bool              // the reply can name the report that it answers
	mentioned     map[grantKey]bool // grants that the report mentions
	mustStop      bool              // as in reportHandling
	nonce         string            // part of the lease ids of this attempt
	steps         *waiters.Steps    // steps of the handoff that led to the attempt; nil if they are not recorded

	// The fields below hold the progress of the attempt. The field granted and the fields after it are the outcome of the attempt.
	offeredPools     []string                    // pools in which a slot is offered to the device
	full             map[string]bool             // pools without a free slot
	obstacles        map[int64]decision.Obstacle // obstacles found by policies, by task id
	limitedPools     []string                    // pools in which policies let no task of the device start
	dropRounds       int                         // number of rounds in which the attempt ended tasks that policies drop
	committedLease   string                      // lease id of the committed claim
	granted          *store.Grant                // nil if nothing was granted
	refusal          decision.Choice             // why nothing was granted
	needsID          bool                        // refused because the reply cannot name the report that it answers
	untilTurn        time.Duration               // time after which a device in the queue of a full pool must report again; 0 if no pool was full
	mayHaveMoreDrops bool                        // the device may have more tasks that policies drop
}

// grantKey identifies a grant of a device: the id of its task and its fencing token.
type grantKey struct{ task, token int64 }

// runUntilDecided decides whether the device gets a redelivery, a new grant or a refusal, and carries out the decision. The loop ends because
// each iteration records one more full pool, obstacle or repair, which the next decision takes into account.
func (a *grantAttempt) runUntilDecided(ctx context.Context) {
	a.findOffers(ctx)
	defer a.giveBackOffers()
	for repairs := 0; ; {
		if err := a.reporter.readCallerBound(ctx); err != nil {
			a.refuseUnavailable(err)
			return
		}
		choice := decision.Decide(a.currentSituation())
		switch {
		case choice.Reason != devices.ReasonGranted:
			a.setRefusal(choice)
			a.reporter.yieldPlaceInQueue(ctx, choice)
			return
		case !a.canNameReport:
			a.needsID = true
			a.setRefusal(decision.Choice{Reason: devices.ReasonDeclined})
			return
		}
		switch err := a.carryOutChoice(ctx, choice); {
		case err == nil:
			return
		case errors.Is(err, errObstacleRecorded):
		case errors.Is(err, errRepaired) && repairs < maxRepairs:
			repairs++
		default:
			a.refuseUnavailable(err)
			return
		}
	}
}

func (a *grantAttempt) currentSituation() decision.Situation {
	s := decision.ExpectedSituation(a.reporter.view, a.obstacles)
	s.Accept, s.MustStop, s.FullPools, s.OfferedPools = a.acceptsTask, a.mustStop, a.full, a.offeredPools
	s.CallerBound, s.Wire = a.reporter.callerBound, a.reporter.caller.WireName()
	s.Mentioned = s.HeldGrant != nil && a.mentioned[grantKey{s.HeldGrant.Task, s.HeldGrant.Token}]
	return s
}

// carryOutChoice redelivers the grant of the device or makes a new grant, as choice says. If it returns errObstacleRecorded or errRepaired,
// another decision may succeed.
func (a *grantAttempt) carryOutChoice(ctx context.Context, choice decision.Choice) (err error) {
	asked := a.d.config.Now()
	if choice.Redeliver {
		err = a.redeliverGrant(ctx)
	} else {
		err = a.grantUnderPolicies(ctx, choice.Tasks)
	}
	if err != nil {
		return err
	}
	return a.confirmGrant(ctx, asked)
}

// confirmGrant checks that the grant is still in force. It reads the device again if more than maxUnconfirmedAge has passed since requestedAt.
// In this time, another replica may have delivered the grant, and the device may have ended it. It returns errRepaired if the grant has ended.
func (a *grantAttempt) confirmGrant(ctx context.Context, requestedAt time.Time) error {
	for a.granted != nil && a.d.config.Now().Sub(requestedAt) > maxUnconfirmedAge {
		requestedAt = a.d.config.Now()
		if err := a.reporter.rereadView(ctx); err != nil {
			return err
		}
		if g := a.reporter.view.Grant; g == nil || g.Token != a.granted.Token {
			return errRepaired
		}
	}
	return nil
}

// decideAgain reads the device again and returns errRepaired.
func (a *grantAttempt) decideAgain(ctx context.Context) error {
	if err := a.reporter.rereadView(ctx); err != nil {
		return err
	}
	return errRepaired
}

// setGrantIfUsable makes grant the outcome of the attempt. If the usable time of grant is below LeaseMin, the outcome is a refusal.
func (a *grantAttempt) setGrantIfUsable(grant store.Grant) {
	if a.d.usableLeaseTime(grant) < a.d.config.LeaseMin {
		a.setRefusal(decision.Choice{Reason: devices.ReasonBusy, Until: grant.LeaseUntil})
		return
	}
	a.granted = &grant
}

func (a *grantAttempt) setRefusal(choice decision.Choice) { a.granted, a.refusal = nil, choice }

// refuseUnavailable refuses the device because of err. If the attempt had acquired a slot, reconciliation frees the slot.
func (a *grantAttempt) refuseUnavailable(err error) {
	a.d.log.Warn("nothing granted because of an error", "err", err)
	a.setRefusal(decision.Choice{Reason: devices.ReasonUnavailable})
}

// findOffers reads in which pools a slot is offered to the device, and sets offeredPools. Tasks of these pools start first. findOffers
// reads nothing if the device cannot be notified, if it has work in one pool only, or if the message that woke its report named the pool.
func (a *grantAttempt) findOffers(ctx context.Context) {
	if a.reporter.reach() == store.ReachNone || len(a.offeredPools) > 0 || len(a.reporter.taskPools()) < 2 {
		return
	}
	offered, err := a.d.Waiters.Offers.OfferedPools(ctx, a.reporter.taskPools(), string(a.reporter.caller.Device))
	if err != nil {
		a.d.log.WarnContext(ctx, "chose a task without knowing the offers to the device", "err", err)
		return
	}
	a.offeredPools = offered
}

// giveBackOffers gives back the slots that are offered to the device in pools where it starts no task. If the policies of a pool let none of
// its tasks start, giveBackOffers also removes the device from the queue of the pool. If the device joins the queue again, it gets the same
// place, because the order of the queue does not depend on the time of arrival.
func (a *grantAttempt) giveBackOffers() {
	sendUpdate := func(what slots.UpdateKind, pools []string) {
		a.d.Waiters.Offers.SendDeviceUpdate(string(a.reporter.caller.Device), what, pools)
	}
	waiting := a.d.Waiters.Pools.PoolsWithWaiters
	sendUpdate(slots.WaiterLeft, waiting(a.limitedPools))
	if a.reporter.reach() == store.ReachNone {
		return
	}
	if started := a.granted; started != nil {
		sendUpdate(slots.WaiterPassedOver, slices.DeleteFunc(slices.Clone(a.offeredPools), func(pool string) bool { return pool == started.Pool }))
		return
	}
	switch decision.WaitRuleFor(a.refusal.Reason).Queueing {
	case decision.KeepsTurn: // in a full pool the device is in the queue and has no offer
		sendUpdate(slots.WaiterPassedOver, slices.DeleteFunc(slices.Clone(a.offeredPools), func(pool string) bool { return a.full[pool] }))
	case decision.PassedOver:
		sendUpdate(slots.WaiterPassedOver, waiting(a.reporter.taskPools()))
	case decision.LeavesQueue:
		sendUpdate(slots.WaiterLeft, a.offeredPools)
		sendUpdate(slots.WaiterLeft, waiting(a.reporter.taskPools()))
	}
}
