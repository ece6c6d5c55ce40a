package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// maxRecording is the maximum number of transactions that one call of RecordResults has open at the same time. Concurrent transactions
// share the disk flush of a COMMIT.
const maxRecording = 8

// RecordResults records the results that devices report for their grants, and returns one outcome per result, in the order of results. An
// outcome without Err is committed. settle decides the state of each task.
//
// The first result of each task is recorded in one common transaction. Exceptions are a result whose grant is not in force, a result with a
// dropped output, and a result whose rows another transaction has locked. These and all later results of a task get a transaction each, so
// that a failing or slow result does not affect the rest. Results of one task are recorded in their order.
func (s grants) RecordResults(ctx context.Context, results []Result, settle Settle) []ResultOutcome {
	outcomes := make([]ResultOutcome, len(results))
	left := s.recordInOneTx(ctx, results, outcomes, settle)
	var running rescue.Group
	free := make(chan struct{}, maxRecording)
	for _, indexes := range left {
		free <- struct{}{}
		running.Go(func() error {
			defer func() { <-free }()
			for _, i := range indexes {
				outcomes[i] = s.recordResult(ctx, results[i], settle)
			}
			return nil
		})
	}
	_ = running.Wait() // Wait returns no error: each outcome has its own
	return outcomes
}

// recordInOneTx records results in one transaction and sets their outcomes. left contains the indexes of the results that are still to be
// recorded, by task. If the answer to the COMMIT was lost, left is empty: the results are not acknowledged, so the devices send them again.
func (s grants) recordInOneTx(ctx context.Context, results []Result, outcomes []ResultOutcome, settle Settle) (left map[int64][]int) {
	left = make(map[int64][]int, len(results))
	var firsts []reportedRow
	for i, r := range results {
		if len(left[r.Task]) == 0 && !r.Dropped {
			firsts = append(firsts, reportedRow{N: i, Task: r.Task, Token: r.Token, Device: r.Device})
		}
		left[r.Task] = append(left[r.Task], i)
	}
	var endings []grantEnding
	err := rescue.Call(func() error {
		return s.write(ctx, func(tx session) (err error) {
			endings, err = tx.grants().endReported(ctx, firsts, results, settle)
			return err
		})
	})
	if errors.Is(err, ErrOutcomeUnknown) {
		for i := range outcomes {
			outcomes[i].Err = fmt.Errorf("recording results: %w", err)
		}
		return nil
	}
	if err != nil {
		return left
	}
	for _, e := range endings {
		outcomes[e.n] = ResultOutcome{Kind: ResultRecorded, Ended: &e.grant, State: e.settlement.State, Last: e.endsLast()}
		left[e.grant.Task] = left[e.grant.Task][1:]
	}
	return left
}

// endReported ends the grants in force that firsts names. firsts has the first result of each task; the field N of its rows is an index of
// results. endReported skips a grant that another transaction has locked. It cannot be part of a deadlock, because it locks all rows that
// it changes and waits for no lock.
func (s grantsIn) endReported(ctx context.Context, firsts []reportedRow, results []Result, settle Settle) ([]grantEnding, error) {
	endings, err := collect(ctx, s.session, endingDest, `
		SELECT reported.n, NOT EXISTS (SELECT 1 FROM tasks o WHERE o.device = t.device AND o.state = `+hiddenPending+` AND o.id <> t.id)
			AND d.blocked IS NOT TRUE, `+endingTaskColumns+`, `+grantOnlyColumns+`
		FROM {reported} JOIN grants g ON g.task = reported.task AND g.token = reported.token AND g.device = reported.device
			JOIN tasks t ON t.id = g.task {batch of t} {device of t}
		ORDER BY t.id {skip t, g}`, toJSONInput(firsts))
	if err != nil || len(endings) == 0 {
		return nil, err
	}
	for i := range endings {
		endings[i].applyResult(results[endings[i].n], settle)
	}
	return endings, s.endGrants(ctx, endings)
}
