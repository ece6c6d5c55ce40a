package store

import (
	"context"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/internal/reach"
)

// Reach is the way in which a device can be notified that there is a task or a slot for it.
type Reach = reach.Reach

// The ways to notify a device. Their values are stored in the ledger.
const (
	ReachNone = reach.None
	ReachPush = reach.Push
	ReachPark = reach.Park
)

// ReachableDevice is a device that could be given a task now and can be notified.
type ReachableDevice struct {
	Device   string
	Reach    Reach
	Batch    int64
	Task     int64
	Weight   int
	Urgent   bool
	Priority int
}

// TaskPosition is a position in the order in which the tasks of a batch are granted. The zero TaskPosition is before all tasks.
type TaskPosition struct {
	Set      bool
	Priority int
	Task     int64
}

// ReachableSearch describes a search for reachable devices among the waiting tasks of a batch.
type ReachableSearch struct {
	Pool       string
	Batch      int64
	After      TaskPosition
	SeenWithin time.Duration // leave out devices that have been silent for longer than this; silence begins at Device.QuietUntil
	Limit      int           // maximum number of tasks to read, whether their devices are reachable or not
}

// ReachablePage is the result of a ReachableSearch.
type ReachablePage struct {
	Devices   []ReachableDevice
	TasksRead int          // number of tasks read; if it is lower than Limit, the search has reached the end of the batch
	Last      TaskPosition // position of the last task read
}

// ReachableDevices reads the next search.Limit tasks of a batch in the order in which they are granted. It returns the devices that could
// start one of them now, hold no slot and can be notified.
func (s devices) ReachableDevices(ctx context.Context, search ReachableSearch) (ReachablePage, error) {
	type reading struct {
		ReachableDevice
		position TaskPosition
	}
	if !search.After.Set {
		search.After = TaskPosition{Priority: 1 << 30}
	}
	rows, err := collect(ctx, s.readSession(), func(r *reading) []any {
		return []any{&r.Device, &r.Reach, &r.Batch, &r.Task, &r.Weight, &r.Urgent, &r.Priority, &r.position.Priority}
	}, reachableSQL(), search.Pool, search.Batch, search.After.Priority, search.After.Task, search.Limit, search.SeenWithin.Milliseconds())
	if err != nil {
		return ReachablePage{}, fmt.Errorf("finding devices of batch %d: %w", search.Batch, err)
	}
	found := ReachablePage{TasksRead: len(rows)}
	for _, r := range rows {
		found.Last = TaskPosition{Set: true, Priority: r.position.Priority, Task: r.Task}
		if r.Reach != ReachNone {
			found.Devices = append(found.Devices, r.ReachableDevice)
		}
	}
	return found, nil
}

// reachableSQL returns the statement of ReachableDevices. It reads the tasks after a TaskPosition in two parts, each a range of the index:
// first the tasks with the same priority, then the tasks with lower priorities.
func reachableSQL() string {
	return `
	WITH looked AS (
		SELECT * FROM (` + selectOpenTasks + ` AND t.priority = $3 AND t.id > $4 ORDER BY t.id LIMIT $5) AS rest
		UNION ALL
		SELECT * FROM (` + selectOpenTasks + ` AND t.priority < $3 ORDER BY t.priority DESC, t.id LIMIT $5) AS lower
	)
	SELECT t.device, CASE WHEN d.reach <> 0 AND d.quiet_until > {now} - $6 * {ms} AND ` + isEligibleSQL() + `
			AND NOT EXISTS (SELECT 1 FROM grants g WHERE g.device = t.device) THEN d.reach ELSE 0 END,
		t.batch, t.id, b.weight, b.lane = 'urgent', ` + taskPriority + `, t.priority
	FROM looked t JOIN batches b ON b.id = t.batch JOIN pools p ON p.name = t.pool LEFT JOIN devices d ON d.id = t.device
	ORDER BY t.priority DESC, t.id LIMIT $5`
}

const selectOpenTasks = `SELECT t.id, t.pool, t.batch, t.device, t.priority, t.own_priority, t.retry_at, t.not_before, t.not_after, t.attempts, t.started, t.lease_ms
	FROM tasks t WHERE t.pool = $1 AND t.batch = $2 AND t.state = 'pending'`
