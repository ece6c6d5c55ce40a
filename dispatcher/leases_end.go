package dispatcher

import (
	"context"
	"errors"
	"fmt"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/slots"
	"github.com/fleetslots/dispatcher/store"
)

// End gives a slot back, or ends the wait for a slot. A repeated call succeeds. If token is not the token of the
// lease, End changes nothing. It returns store.ErrNotFound, ErrLeaseToken, *LostError or devices.ErrUnavailable.
func (d Leases) End(ctx context.Context, l Leaser, pool string, task, token int64) error {
	of, grant, err := d.ownLease(ctx, l, pool, task)
	switch {
	case err != nil:
		return err
	case grant != nil && token == 0:
		return ErrLeaseToken
	case grant != nil && grant.Token == token:
		return d.giveBack(ctx, l, of, token)
	case of.State == store.Pending && token == 0:
		return d.giveUp(ctx, l, of)
	case token != 0 && d.endedByHolder(ctx, task, token), grant == nil && token == 0:
		return nil
	}
	return d.lost(ctx, of, token)
}

// ownLease reads a lease of the caller l. It returns store.ErrNotFound if l has no lease with this task in pool.
func (d Leases) ownLease(ctx context.Context, l Leaser, pool string, task int64) (store.Task, *store.Grant, error) {
	of, grant, _, err := d.config.Store.Task(ctx, task)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return of, nil, err //nolint:wrapcheck // the store's own
	case err != nil:
		return of, nil, fmt.Errorf("%w: reading lease %d: %w", devices.ErrUnavailable, task, err)
	case of.Pool != pool || !l.owns(of.Device):
		return of, nil, store.ErrNotFound
	}
	return of, grant, nil
}

// giveBack gives the slot of a lease back: it reports that the task of the lease succeeded.
func (d Leases) giveBack(ctx context.Context, l Leaser, of store.Task, token int64) error {
	reply, err := d.HandleReport(ctx, l.as(of.Device), devices.Report{
		ID: nonce(), Results: []devices.Result{{Task: of.ID, Token: token, Status: devices.StatusSucceeded}},
	})
	if err != nil {
		return err
	}
	if len(reply.Acks) == 0 {
		return fmt.Errorf("%w: lease %d", devices.ErrUnavailable, of.ID)
	}
	if got := reply.Acks[0].Outcome; got != devices.OutcomeRecorded && got != devices.OutcomeDuplicate {
		return d.lost(ctx, of, token)
	}
	d.metrics.leases.WithLabelValues(of.Pool, "ended").Inc()
	return nil
}

// giveUp ends the wait of a lease, unless the lease was granted just now. A parked request of its holder is
// answered now.
func (d Leases) giveUp(ctx context.Context, l Leaser, of store.Task) error {
	held, err := d.config.Store.GiveUpLease(ctx, l.Name, of.ID)
	switch {
	case err != nil:
		return fmt.Errorf("%w: ending the waiting of lease %d: %w", devices.ErrUnavailable, of.ID, err)
	case held:
		return ErrLeaseToken
	}
	d.Waiters.Offers.Update(of.Device, slots.WaiterLeft, []string{of.Pool})
	d.Waiters.Relay.WakeCallers(of.Pool)
	_, err = d.HandleReport(ctx, l.as(of.Device), devices.Report{ID: nonce()})
	return err
}

// endedByHolder reports whether the holder itself gave the slot back.
func (d Leases) endedByHolder(ctx context.Context, task, token int64) bool {
	_, _, attempts, err := d.config.Store.Task(ctx, task)
	for _, a := range attempts {
		if a.Token == token {
			return err == nil && a.EndedBy == store.BySuccess
		}
	}
	return false
}

// lost returns the error for a lease that has ended, is held under another token, or must be stopped.
func (d Leases) lost(ctx context.Context, of store.Task, token int64) error {
	e, err := d.Explainer.Why(ctx, of.ID)
	if err != nil {
		return fmt.Errorf("%w: %w", devices.ErrUnavailable, err)
	}
	lost := &LostError{Why: "ended", Detail: e.Causes[0].Detail}
	_, grant, attempts, err := d.config.Store.Task(ctx, of.ID)
	if err != nil {
		return fmt.Errorf("%w: %w", devices.ErrUnavailable, err)
	}
	if grant != nil && grant.Token == token && grant.CancelWhy != "" {
		return &LostError{Why: grant.CancelWhy, Detail: "its holder was asked to stop: " + lost.Detail, Cancel: true}
	}
	for _, a := range attempts {
		switch {
		case token != 0 && a.Token != token:
		case a.EndedBy == store.ByLapse:
			lost.Why = "reaped"
		case a.EndedBy == store.ByOperator:
			lost.Why = "released"
		}
	}
	if grant != nil && grant.Token != token {
		lost.Why, lost.Detail = "stale", "it is held under another token"
	}
	return lost
}
