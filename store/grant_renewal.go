package store

import (
	"context"
	"fmt"
)

// reportedRow is a grant as its device names it.
type reportedRow struct {
	N      int    `json:"n"`
	Task   int64  `json:"task"`
	Token  int64  `json:"token"`
	Device string `json:"device"`
}

// due is the condition that a renewal is worth writing: more than a third of
// the lease is used, and there is time to be won. Never after a cancel or a
// lapse: the device was told, or will be, to stop.
const due = `g.cancel_why = '' AND g.lease_until > {now} AND g.lease_until < g.max_until
	AND g.lease_until < {now} + g.lease_ms * 2 / 3 * {ms}`

// Renew extends leases that are due, and reports all; one outcome per renewal,
// in their order.
func (s grants) Renew(ctx context.Context, renewals []Renewal) ([]RenewalOutcome, error) {
	if len(renewals) == 0 {
		return nil, nil
	}
	rows := make([]reportedRow, len(renewals))
	for i, r := range renewals {
		rows[i] = reportedRow{N: i, Task: r.Task, Token: r.Token, Device: r.Device}
	}
	in := input(rows)
	outcomes, extend, err := s.read().grants().renewals(ctx, in, len(rows))
	if err != nil || len(extend) == 0 {
		return outcomes, err
	}
	err = s.write(ctx, func(tx session) (err error) {
		if err := tx.grants().extend(ctx, extend); err != nil {
			return err
		}
		outcomes, _, err = tx.grants().renewals(ctx, in, len(rows))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("renewing: %w", err)
	}
	return outcomes, nil
}

// extend locks in one order, so that two batches never wait in a circle.
func (s grantsIn) extend(ctx context.Context, tasks []int64) error {
	const list = `SELECT g.task FROM grants g WHERE g.task IN (SELECT id FROM {ids})`
	in := ids(tasks...)
	if _, err := s.exec(ctx, list+` ORDER BY g.task {lock}`, in); err != nil {
		return err
	}
	_, err := s.exec(ctx, `
		UPDATE grants AS g SET lease_until = {least}({now} + g.lease_ms * {ms}, g.max_until)
		WHERE g.task IN (SELECT id FROM {ids}) AND `+due, in)
	return err
}

func (s grantsIn) renewals(ctx context.Context, in string, n int) (outcomes []RenewalOutcome, extend []int64, err error) {
	type reading struct {
		n     int
		holds bool
		due   bool
		grant Grant
	}
	rows, err := collect(ctx, s.session, func(r *reading) []any {
		return append([]any{&r.n, &r.holds, &r.due}, grantDest(&r.grant)...)
	}, `
		SELECT reported.n, g.token = reported.token AND g.device = reported.device, `+due+`, `+grantColumns+`
		FROM {reported} JOIN grants g ON g.task = reported.task JOIN tasks t ON t.id = g.task JOIN batches b ON b.id = g.batch`, in)
	if err != nil {
		return nil, nil, fmt.Errorf("reading renewals: %w", err)
	}
	outcomes = make([]RenewalOutcome, n)
	for _, r := range rows {
		o := &outcomes[r.n]
		if !r.holds {
			o.Superseded = true
			continue
		}
		o.Found, o.Grant = true, r.grant
		if r.due {
			extend = append(extend, r.grant.Task)
		}
	}
	return outcomes, extend, nil
}
