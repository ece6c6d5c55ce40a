package store

import (
	"context"
	"fmt"
)

// reportedRow names a grant by the values that its device reported.
type reportedRow struct {
	N      int    `json:"n"`
	Task   int64  `json:"task"`
	Token  int64  `json:"token"`
	Device string `json:"device"`
	Lease  int64  `json:"lease_ms,omitempty"`
}

// shouldRenewSQL is the condition for writing a renewal. The renewal must make the lease end later, and the grant must be in force and not
// cancelled. A renewal without a length is written only after a third of the lease, so that frequent reports cause few writes.
const shouldRenewSQL = `g.cancel_why = '' AND g.lease_until > {now} AND g.lease_until < g.max_until
	AND g.lease_until < {now} + coalesce(reported.lease_ms, g.lease_ms * 2 / 3) * {ms}`

// renewedLengthSQL is the length of the lease after a renewal. A requested length is limited to the time until max_until, because the
// safety margin in the answer is computed from the length.
const renewedLengthSQL = `CASE WHEN reported.lease_ms IS NULL THEN g.lease_ms
	ELSE least(reported.lease_ms, (SELECT {since began} FROM (SELECT g.max_until AS at, {now} AS began) AS run)) END`

// Renew extends the leases for which shouldRenewSQL is true, and returns one outcome per renewal, in their order. A lease never ends
// earlier than before, because the holder may rely on an earlier answer. The length of a lease changes only together with its end.
func (s grants) Renew(ctx context.Context, renewals []Renewal) ([]RenewalOutcome, error) {
	if len(renewals) == 0 {
		return nil, nil
	}
	rows := make([]reportedRow, len(renewals))
	for i, r := range renewals {
		rows[i] = reportedRow{N: i, Task: r.Task, Token: r.Token, Device: r.Device, Lease: r.Lease.Milliseconds()}
	}
	reported := rowsToJSONArray(rows)
	outcomes, toExtend, err := s.readSession().readRenewals(ctx, reported, len(rows))
	if err != nil || len(toExtend) == 0 {
		return outcomes, err
	}
	dueRows := make([]reportedRow, len(toExtend))
	for i, n := range toExtend {
		dueRows[i] = rows[n]
	}
	err = s.write(ctx, func(tx session) (err error) {
		if err := tx.extendLeases(ctx, dueRows); err != nil {
			return err
		}
		outcomes, _, err = tx.readRenewals(ctx, reported, len(rows))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("renewing grants: %w", err)
	}
	return outcomes, nil
}

// extendLeases writes the renewals in rows. It locks the grants in one order, so that concurrent calls cannot deadlock.
func (s session) extendLeases(ctx context.Context, rows []reportedRow) error {
	tasks := make([]int64, len(rows))
	for i, r := range rows {
		tasks[i] = r.Task
	}
	if _, err := s.exec(ctx, `SELECT g.task FROM grants g WHERE g.task IN (SELECT id FROM {ids}) ORDER BY g.task FOR UPDATE`, idsToJSONArray(tasks...)); err != nil {
		return err
	}
	_, err := s.exec(ctx, `
		UPDATE grants AS g SET lease_until = least({now} + coalesce(reported.lease_ms, g.lease_ms) * {ms}, g.max_until),
			lease_ms = `+renewedLengthSQL+`,
			longest_ms = greatest(`+longestLease+`, `+renewedLengthSQL+`)
		FROM {reported} WHERE g.task = reported.task AND g.token = reported.token AND `+shouldRenewSQL, rowsToJSONArray(rows))
	return err
}

// readRenewals reads the grants of the renewals in reportedJSON, a JSON list of length count. toExtend has the indexes of the renewals that
// must be written.
func (s session) readRenewals(ctx context.Context, reportedJSON string, count int) (outcomes []RenewalOutcome, toExtend []int, err error) {
	type reading struct {
		n        int
		isHolder bool
		isDue    bool
		grant    Grant
	}
	rows, err := collect(ctx, s, func(r *reading) []any {
		return append([]any{&r.n, &r.isHolder, &r.isDue}, grantScanDest(&r.grant)...)
	}, `
		SELECT reported.n, g.token = reported.token AND g.device = reported.device, `+shouldRenewSQL+`, `+grantColumns+`
		FROM {reported} JOIN grants g ON g.task = reported.task JOIN tasks t ON t.id = g.task JOIN batches b ON b.id = g.batch`, reportedJSON)
	if err != nil {
		return nil, nil, fmt.Errorf("reading renewals: %w", err)
	}
	outcomes = make([]RenewalOutcome, count)
	for _, r := range rows {
		o := &outcomes[r.n]
		if !r.isHolder {
			o.Superseded = true
			continue
		}
		o.Found, o.Grant = true, r.grant
		if r.isDue {
			toExtend = append(toExtend, r.n)
		}
	}
	return outcomes, toExtend, nil
}
