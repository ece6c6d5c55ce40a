package app

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/fleetslots/dispatcher/dispatcher/upkeep"
	"github.com/fleetslots/dispatcher/operators/web"
)

// advanceTTLsEvery is the interval at which expired keys of an in-process Redis are deleted. Nothing depends on their deletion.
const advanceTTLsEvery = 10 * time.Second

// newPasses returns the passes of the dispatcher, which every replica runs. docs/architecture.md lists them.
func (a *App) newPasses(servers backends) *passes {
	const limit = 30 * time.Second
	keep, seen := a.dispatcher.Upkeep, a.dispatcher.Seen
	reap := &pass{name: "reap", every: a.config.ReapInterval, limit: limit, run: a.reap}
	p := newPasses(
		a.log, a.dispatcher.Panicked,
		&pass{name: "follow", every: 400 * time.Millisecond, limit: 5 * time.Second, run: a.withReconcileLog(keep.FollowChanges), quiet: true},
		&pass{name: "marks", every: time.Second, limit: 2 * time.Minute, run: a.dispatcher.Marks.FollowNews, quiet: true},
		&pass{name: "tokens", every: time.Second, limit: 5 * time.Second, run: a.dispatcher.Devices.DropChangedTokens, quiet: true},
		&pass{name: "limit sets", every: 500 * time.Millisecond, limit: 5 * time.Second, run: a.dispatcher.Policies.Sets.ForgetChanged, quiet: true},
		&pass{name: "hand on", every: 500 * time.Millisecond, limit: 5 * time.Second, run: a.dispatcher.Waiters.Filler.FillAllPools, quiet: true},
		&pass{name: "limits", every: 10 * time.Second, limit: limit, run: a.settlePolicyReservations},
		&pass{name: "reconcile", every: a.config.ReconcileInterval, limit: limit, run: a.withReconcileLog(keep.Reconcile)},
		reap,
		&pass{name: "retain", every: 10 * time.Minute, limit: limit, run: a.deleteOldHistory},
		&pass{name: "expire", every: 10 * time.Second, limit: limit, run: a.withCountLog("tasks expired", "tasks", keep.ExpireTasks)},
		&pass{name: "accounts", every: time.Second, limit: limit, run: a.withCountLog("accounts at the broker updated to match the devices", "accounts", a.updateBrokerAccounts)},
		&pass{name: "cancel", every: time.Second, limit: limit, run: a.withCountLog("tasks of cancelled batches ended", "tasks", keep.EndCancelledTasks)},
		&pass{name: "windows", every: 2 * time.Second, limit: limit, run: keep.RefreshWindows},
		&pass{name: "fold", every: 2 * time.Second, limit: limit, run: a.fold},
		&pass{name: "minutes", every: 5 * time.Second, limit: limit, run: keep.CountEventsByMinute},
		&pass{name: "seal", every: 5 * time.Second, limit: limit, run: keep.SealEvents},
		&pass{name: "recent", every: time.Second, limit: 5 * time.Second, run: seen.FlushRecent, quiet: true},
		&pass{name: "noisy", every: time.Second, limit: 5 * time.Second, run: a.newNoisyDeviceWatch(servers.store).recordNoisyDevices, quiet: true},
		&pass{name: "idle", every: time.Second, limit: limit, run: keep.CountIdleSlots, quiet: true},
		&pass{name: "dashboard", every: 900 * time.Millisecond, limit: 10 * time.Second, run: a.updatePages, quiet: true},
		&pass{name: "presence", every: web.HeartbeatEvery, limit: 10 * time.Second, run: a.recordHeartbeat, quiet: true},
		&pass{name: "reached", every: time.Second / 2, limit: 5 * time.Second, run: seen.FlushReached, quiet: true},
		&pass{name: "last-seen", every: 10 * time.Second, limit: limit, run: seen.Flush},
		&pass{name: "warm", every: 3 * time.Second, limit: time.Minute, run: servers.store.Warm, quiet: true},
		&pass{name: "garbage", every: memoryEvery, limit: time.Minute, run: adjustGarbageCollection, quiet: true},
		&pass{name: "redis", every: redisEvery, limit: 5 * time.Second, run: (&redisWatch{conn: servers.redis, log: a.log}).logRedisState, quiet: true},
	)
	if !servers.dev { // with a large simulated fleet in the process, the limit would let garbage collection take half of the processor time
		p.all = append(p.all, &pass{name: "memory", every: memoryEvery, limit: time.Minute, run: adjustMemoryLimit, quiet: true})
	}
	if servers.advanceTTLs != nil {
		p.all = append(p.all, &pass{name: "age", every: advanceTTLsEvery, limit: time.Minute, run: func(context.Context) error {
			servers.advanceTTLs(advanceTTLsEvery)
			return nil
		}}, &pass{name: "fleet", every: fleetWatchEvery, limit: limit, run: (&fleetSizeWatch{countReporting: servers.store.CountReporting, log: a.log}).warnIfTooLarge, quiet: true})
	}
	p.addBackground(func(ctx context.Context) { p.reapAfterLeaseEnds(ctx, reap, servers.store.NextLapse) })
	return p
}

func (a *App) updatePages(ctx context.Context) error {
	if a.web == nil {
		return nil
	}
	return a.web.Tick(ctx)
}

func (a *App) deleteOldHistory(ctx context.Context) error {
	keep, err := a.config.historyRetention()
	if err != nil {
		return err
	}
	removed, err := a.dispatcher.Upkeep.DeleteOldRows(ctx, keep)
	if removed.Largest() > 0 {
		a.log.InfoContext(ctx, "old history removed", "events", removed.Events, "attempts", removed.Attempts, "results", removed.Results, "answers", removed.Answers,
			"tasks", removed.Tasks, "batches", removed.Batches)
	}
	return err
}

// withCountLog returns a pass that calls run. If run returns a count above 0, the pass logs message with the count. attribute is the name
// of the count in the log.
func (a *App) withCountLog(message, attribute string, run func(context.Context) (int, error)) func(context.Context) error {
	return func(ctx context.Context) error {
		n, err := run(ctx)
		if n > 0 {
			a.log.InfoContext(ctx, message, attribute, n) //nolint:sloglint // the message is a constant of each pass
		}
		return err
	}
}

// reap is a pass that ends the grants whose lease has ended, and logs their numbers.
func (a *App) reap(ctx context.Context) error {
	result, err := a.dispatcher.Upkeep.Reap(ctx)
	if result.Retried+result.Ended > 0 {
		a.log.InfoContext(ctx, "slots of silent devices taken back", "tasks_pending_again", result.Retried, "tasks_ended", result.Ended)
	}
	return err
}

// settlePolicyReservations is a pass that resolves the reservations that replicas left open, and adds the starts that are missing in
// Redis to the counts there.
func (a *App) settlePolicyReservations(ctx context.Context) error {
	done, err := a.dispatcher.Policies.SettleAllReservations(ctx)
	if done.Invalidated > 0 {
		a.log.InfoContext(ctx, "counts of policies restarted: tasks started while Redis was unreachable", "policies", done.Invalidated)
	}
	return err
}

// withReconcileLog returns a pass that calls run and logs the repairs if the semaphore and the ledger disagreed.
func (a *App) withReconcileLog(run func(context.Context) (upkeep.ReconcileResult, error)) func(context.Context) error {
	return func(ctx context.Context) error {
		result, err := run(ctx)
		if result.Drift() > 0 {
			a.log.InfoContext(ctx, "slots reconciled", "freed", result.Freed, "added", result.Added, "refused", result.Refused)
		}
		return err
	}
}

// fold is a pass that adds the changes of task states to the counts of batches, and logs the batches that it paused.
func (a *App) fold(ctx context.Context) error {
	aborted, err := a.dispatcher.Upkeep.FoldCounts(ctx)
	if len(aborted) > 0 {
		a.log.WarnContext(ctx, "batches paused by their abort rule", "batches", aborted)
	}
	return err
}

const (
	memoryEvery = time.Second

	// memoryGoal is the memory limit of the process in bytes, unless the process needs more. A dispatcher with a million
	// devices needs less. Without a limit, the garbage collector would let the heap grow to twice the live data, and would
	// not return the memory.
	memoryGoal = 160 << 20

	// memoryOverhead is the memory that is needed in addition to heap and stacks, for data of the garbage
	// collector.
	memoryOverhead = 32 << 20
)

// adjustMemoryLimit is a pass that sets the memory limit of the Go runtime, so that garbage is collected more often near memoryGoal. If
// GOMEMLIMIT is set, the pass does not change it.
func adjustMemoryLimit(context.Context) error {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit(readMetric("/gc/heap/live:bytes") + readMetric("/memory/classes/heap/stacks:bytes")))
	}
	return nil
}

// adjustGarbageCollection is a pass that sets how often the Go runtime collects garbage. If GOGC is set, the pass does not change it.
func adjustGarbageCollection(context.Context) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent(readMetric("/gc/heap/live:bytes")))
	}
	return nil
}

// readMetric returns the value of a metric of the Go runtime.
func readMetric(name string) (value int64) {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}

// gcPercent returns the growth of the heap, in percent of the live data, after which garbage is collected. The live data of a
// busy dispatcher is about 10 MB, so the default of 100 would collect ten times a second. The heap may grow fivefold if that
// is less than memoryGoal. Large requests need the default.
func gcPercent(liveBytes int64) int {
	if 5*liveBytes <= memoryGoal {
		return 400
	}
	return 100
}

// memoryLimit returns the memory limit for a process that uses usedBytes. The limit is well above usedBytes, because
// otherwise the garbage collector would run all the time.
func memoryLimit(usedBytes int64) (limitBytes int64) {
	return max(memoryGoal, usedBytes*5/4+memoryOverhead)
}
