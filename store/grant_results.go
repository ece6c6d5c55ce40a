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

// RecordResults records the results that devices report for their grants, and returns one outcome per result, in the order of results.
// settle decides the state of each task. An outcome without Err is committed. The first results of all tasks are recorded in one common
// transaction, except a result whose grant is not in force, that has a dropped output, or whose rows another transaction has locked. All
// other results get a transaction each, so that a failing or slow result does not affect the rest. Results of one task are recorded in
// their order.
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

// recordInOneTx records results in one transaction and sets their outcomes. In left, it returns the indexes of the results that are still
// to be recorded, by task. If the answer to the COMMIT was lost, it returns no index, because a device sends a result again if it is not
// acknowledged.
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

// endReported ends those grants in force that firsts name: the first results of their tasks. results has all results, by the index in
// firsts. It skips a grant that another transaction has locked. It locks all rows that it changes and waits for no lock, so it cannot be
// part of a deadlock.
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
