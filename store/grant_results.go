package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/fleetslots/dispatcher/internal/rescue"
)

// maxRecording bounds the transactions that one call has open at once: they share the
// flush of a COMMIT.
const maxRecording = 8

// RecordResults takes what devices say of the end of their grants. Those of grants that
// are in force are taken together, in one transaction; all others, and those whose rows
// somebody else has locked, each in a transaction of its own: a bad one never fails its
// neighbours, and a slow one holds up none. One outcome per result, in their order; an
// outcome without Err is committed. Results of one task are taken in their order.
func (s grants) RecordResults(ctx context.Context, results []Result, settle Settle) []ResultOutcome {
	outcomes := make([]ResultOutcome, len(results))
	left := s.recordTogether(ctx, results, outcomes, settle)
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
	_ = running.Wait() // each outcome has its error
	return outcomes
}

// recordTogether fills in the outcomes of those that it recorded, and returns the
// indexes of the others, by task. After a COMMIT without an answer there are no others:
// devices send again what is not acknowledged.
func (s grants) recordTogether(ctx context.Context, results []Result, outcomes []ResultOutcome, settle Settle) (left map[int64][]int) {
	left = make(map[int64][]int, len(results))
	var firsts []reportedRow
	for i, r := range results {
		if len(left[r.Task]) == 0 && !r.Dropped {
			firsts = append(firsts, reportedRow{N: i, Task: r.Task, Token: r.Token, Device: r.Device})
		}
		left[r.Task] = append(left[r.Task], i)
	}
	var endings []ending
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
		outcomes[e.n] = ResultOutcome{Kind: ResultRecorded, Ended: &e.grant, State: e.settled.State}
		left[e.grant.Task] = left[e.grant.Task][1:]
	}
	return left
}

// endReported ends the grants in force that these results are about, but for those that
// somebody else has locked. The rows that it locks are all that it changes later, and it
// waits for none, so it can be part of no circle.
func (s grantsIn) endReported(ctx context.Context, firsts []reportedRow, results []Result, settle Settle) ([]ending, error) {
	endings, err := collect(ctx, s.session, endingDest, `
		SELECT reported.n, `+subjectColumns+`, `+heldColumns+`
		FROM {reported} JOIN grants g ON g.task = reported.task AND g.token = reported.token AND g.device = reported.device
			JOIN tasks t ON t.id = g.task {batch of t}
		ORDER BY t.id {skip t, g}`, input(firsts))
	if err != nil || len(endings) == 0 {
		return nil, err
	}
	for i := range endings {
		endings[i].report(results[endings[i].n], settle)
	}
	return endings, s.end(ctx, endings)
}
