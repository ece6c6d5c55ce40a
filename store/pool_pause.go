package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Kinds of events that concern several pools. The detail of such an event begins with the names of its pools.
const (
	poolsPaused  = "pools.paused"
	poolsResumed = "pools.resumed"
)

// whyPaused is the cancel_why of a grant whose device was asked to stop because its pool was paused.
const whyPaused = "paused"

// PoolsPause pauses pools, or ends their pauses.
type PoolsPause struct {
	Pools       []string // names
	End         bool     // if true, end the pauses that the actor began; if false, pause the pools that are not paused
	Reason      string   // reason of the pauses; may be empty
	StopRunning bool     // also ask the devices that hold a slot to stop; their tasks wait again
}

// PausePools applies change in one transaction, with one event for all changed pools. It returns the number of changed pools and the number
// of devices that it asked to stop. Holders of callers' leases are not asked.
func (s pools) PausePools(ctx context.Context, actor string, change PoolsPause) (changedPools, askedDevices int, err error) {
	names := slices.Sorted(slices.Values(change.Pools))
	err = s.write(ctx, func(tx session) error {
		for _, name := range names {
			if err := tx.lockNameExclusively(ctx, name); err != nil {
				return err
			}
		}
		concerned, err := tx.applyPause(ctx, actor, change, names)
		if err != nil {
			return fmt.Errorf("pausing pools: %w", err)
		}
		changedPools = len(concerned)
		for _, name := range concerned {
			tx.pendingNews.addPool(name)
		}
		detail := ""
		if askedDevices = 0; change.StopRunning {
			asked, err := tx.askTasksToStopForPause(ctx, names)
			if err != nil {
				return err
			}
			askedDevices, detail = len(asked), fmt.Sprintf(" stopping=%d", len(asked))
			concerned = append(concerned, asked...)
		}
		if len(concerned) == 0 {
			return nil
		}
		kind := map[bool]string{false: poolsPaused, true: poolsResumed}[change.End]
		slices.Sort(concerned)
		return tx.recordEvent(ctx, Event{Kind: kind, Actor: actor, Detail: appendReason(strings.Join(slices.Compact(concerned), ",")+detail, change.Reason)})
	})
	return changedPools, askedDevices, err
}

// applyPause pauses the pools in names, or ends their pauses, and returns the names of the changed pools.
func (s session) applyPause(ctx context.Context, actor string, change PoolsPause, names []string) (changedNames []string, err error) {
	return collect(ctx, s, singleColumn[string], `
		UPDATE pools SET version = version + 1, updated_at = {now}, paused = $2, pause_reason = $4,
			paused_by = CASE WHEN $2 THEN $3 ELSE '' END, paused_at = CASE WHEN $2 THEN {now} END
		WHERE name IN (SELECT name FROM {names}) AND deleted_at IS NULL AND paused <> $2 AND ($2 OR paused_by = $3) RETURNING name`,
		namesToJSONArray(names), !change.End, actor, change.Reason)
}

// askTasksToStopForPause asks the devices that hold a slot of the paused pools to stop. poolOfEach has the pool of each device that was asked,
// so a pool can occur several times.
func (s session) askTasksToStopForPause(ctx context.Context, pools []string) (poolOfEach []string, err error) {
	type holding struct {
		task int64
		pool string
	}
	held, err := collect(ctx, s, func(h *holding) []any { return []any{&h.task, &h.pool} }, `
		SELECT g.task, g.pool FROM grants g WHERE g.pool IN (SELECT name FROM {names}) AND g.cancel_why = '' AND g.device NOT LIKE '`+callerPrefix+`%'
		ORDER BY g.task FOR UPDATE`, namesToJSONArray(pools))
	tasks := make([]int64, len(held))
	for i, h := range held {
		tasks[i], poolOfEach = h.task, append(poolOfEach, h.pool)
	}
	if err != nil || len(held) == 0 {
		return nil, err
	}
	return poolOfEach, s.askTasksToStop(ctx, Canceller, whyPaused, whyPaused, tasks)
}
