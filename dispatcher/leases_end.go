package dispatcher

import (
	"context"
	"errors"
	"fmt"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// End ends the lease of caller in pool that the ledger stores as the task taskID. It gives back the slot, or ends the wait for a slot. A
// repeated call succeeds. fencingToken is 0 if the lease waits. With a wrong fencing token, End changes nothing. It returns store.ErrNotFound,
// ErrLeaseToken, *LostError or devices.ErrUnavailable.
func (d Leases) End(ctx context.Context, caller Leaser, pool string, taskID, fencingToken int64) error {
	leaseTask, grant, err := d.readOwnLease(ctx, caller, pool, taskID)
	switch {
	case err != nil:
		return err
	case grant != nil && fencingToken == 0:
		return ErrLeaseToken
	case grant != nil && grant.Token == fencingToken:
		return d.giveBackSlot(ctx, caller, leaseTask, fencingToken)
	case leaseTask.State == store.Pending && fencingToken == 0:
		return d.endWaitingLease(ctx, caller, leaseTask)
	case fencingToken != 0 && d.wasEndedByHolder(ctx, taskID, fencingToken), grant == nil && fencingToken == 0:
		return nil
	}
	return d.newLostError(ctx, leaseTask, fencingToken)
}

// readOwnLease reads the lease with this id and its grant (nil if it holds no slot). It returns store.ErrNotFound if the caller has no such
// lease in pool.
func (d Leases) readOwnLease(ctx context.Context, caller Leaser, pool string, taskID int64) (leaseTask store.Task, grant *store.Grant, err error) {
	leaseTask, grant, _, err = d.config.Store.Task(ctx, taskID)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return leaseTask, nil, err
	case err != nil:
		return leaseTask, nil, fmt.Errorf("%w: reading lease %d: %w", devices.ErrUnavailable, taskID, err)
	case leaseTask.Pool != pool || !caller.isOwnHolder(leaseTask.Device):
		return leaseTask, nil, store.ErrNotFound
	}
	return leaseTask, grant, nil
}

// giveBackSlot gives back the slot of leaseTask. It reports that the task has succeeded.
func (d Leases) giveBackSlot(ctx context.Context, caller Leaser, leaseTask store.Task, fencingToken int64) error {
	reply, err := d.HandleReport(ctx, caller.callerForHolder(leaseTask.Device), devices.Report{
		ID: newNonce(), Results: []devices.Result{{Task: leaseTask.ID, Token: fencingToken, Status: devices.StatusSucceeded}},
	})
	if err != nil {
		return err
	}
	if len(reply.Acks) == 0 {
		return fmt.Errorf("%w: lease %d", devices.ErrUnavailable, leaseTask.ID)
	}
	if got := reply.Acks[0].Outcome; got != devices.OutcomeRecorded && got != devices.OutcomeDuplicate {
		return d.newLostError(ctx, leaseTask, fencingToken)
	}
	d.metrics.leases.WithLabelValues(leaseTask.Pool, "ended").Inc()
	return nil
}

// endWaitingLease ends the wait of a lease, and answers a parked request of its holder. It returns ErrLeaseToken if the lease was just granted.
func (d Leases) endWaitingLease(ctx context.Context, caller Leaser, leaseTask store.Task) error {
	held, err := d.config.Store.GiveUpLease(ctx, caller.Name, leaseTask.ID)
	switch {
	case err != nil:
		return fmt.Errorf("%w: ending the wait of lease %d: %w", devices.ErrUnavailable, leaseTask.ID, err)
	case held:
		return ErrLeaseToken
	}
	d.Waiters.Offers.SendDeviceUpdate(leaseTask.Device, slots.WaiterLeft, []string{leaseTask.Pool})
	d.Waiters.Relay.WakeCallers(leaseTask.Pool)
	_, err = d.HandleReport(ctx, caller.callerForHolder(leaseTask.Device), devices.Report{ID: newNonce()})
	return err
}

// wasEndedByHolder reports whether the holder itself gave back the slot that taskID held with this fencing token.
func (d Leases) wasEndedByHolder(ctx context.Context, taskID, fencingToken int64) bool {
	_, _, attempts, err := d.config.Store.Task(ctx, taskID)
	for _, a := range attempts {
		if a.Token == fencingToken {
			return err == nil && a.EndedBy == store.BySuccess
		}
	}
	return false
}

// newLostError returns the error for a lease that has ended, is held under another fencing token, or must be stopped.
func (d Leases) newLostError(ctx context.Context, leaseTask store.Task, fencingToken int64) error {
	e, err := d.Explainer.ExplainTask(ctx, leaseTask.ID)
	if err != nil {
		return fmt.Errorf("%w: %w", devices.ErrUnavailable, err)
	}
	lost := &LostError{Why: "ended", Detail: e.Causes[0].Detail}
	_, grant, attempts, err := d.config.Store.Task(ctx, leaseTask.ID)
	if err != nil {
		return fmt.Errorf("%w: %w", devices.ErrUnavailable, err)
	}
	if grant != nil && grant.Token == fencingToken && grant.CancelWhy != "" {
		return &LostError{Why: grant.CancelWhy, Detail: "its holder was asked to stop: " + lost.Detail, Cancel: true}
	}
	for _, a := range attempts {
		switch {
		case fencingToken != 0 && a.Token != fencingToken:
		case a.EndedBy == store.ByLapse:
			lost.Why = "reaped"
		case a.EndedBy == store.ByOperator:
			lost.Why = "released"
		}
	}
	if grant != nil && grant.Token != fencingToken {
		lost.Why, lost.Detail = "stale", "the slot is held under another token"
	}
	return lost
}
