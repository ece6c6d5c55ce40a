package store

import (
	"context"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/internal/reach"
)

// Reach is how a device can be told that there is something for it.
type Reach = reach.Reach

// The ways to tell a device; they are stored.
const (
	ReachNone = reach.None
	ReachPush = reach.Push
	ReachPark = reach.Park
)

// ReachableDevice is a device that could be given a task now, and be told so.
type ReachableDevice struct {
	Device   string
	Reach    Reach
	Batch    int64
	Task     int64
	Weight   int
	Urgent   bool
	Priority int
}

// Mark is a position in the order of the tasks of a batch, so that a search goes on
// where the one before it ended. The zero Mark is before all.
type Mark struct {
	Set      bool
	Priority int
	Task     int64
}

// ReachableSearch looks for reachable devices among the waiting tasks of a batch.
type ReachableSearch struct {
	Pool  string
	Batch int64
	After Mark
	Seen  time.Duration // devices that were seen within that time, as far as it was flushed
	Limit int           // tasks that are looked at, of reachable devices or not
}

// ReachablePage is the result of a ReachableSearch.
type ReachablePage struct {
	Devices []ReachableDevice
	Looked  int  // tasks that were looked at; fewer than the limit: the batch is through
	Last    Mark // the last of them
}

// ReachableDevices looks at the next tasks of a batch, in its order, and returns those of
// devices that could start one now, hold no slot and can be told.
func (s devices) ReachableDevices(ctx context.Context, search ReachableSearch) (ReachablePage, error) {
	type reading struct {
		ReachableDevice
		mark Mark
	}
	if !search.After.Set {
		search.After = Mark{Priority: 1 << 30}
	}
	rows, err := collect(ctx, s.read(), func(r *reading) []any {
		return []any{&r.Device, &r.Reach, &r.Batch, &r.Task, &r.Weight, &r.Urgent, &r.Priority, &r.mark.Priority}
	}, reachableText(), search.Pool, search.Batch, search.After.Priority, search.After.Task, search.Limit, search.Seen.Milliseconds())
	if err != nil {
		return ReachablePage{}, fmt.Errorf("looking for devices of batch %d: %w", search.Batch, err)
	}
	found := ReachablePage{Looked: len(rows)}
	for _, r := range rows {
		found.Last = Mark{Set: true, Priority: r.mark.Priority, Task: r.Task}
		if r.Reach != ReachNone {
			found.Devices = append(found.Devices, r.ReachableDevice)
		}
	}
	return found, nil
}

// reachableText reads the tasks that follow a mark, in two steps that the index
// serves from there on: the rest of its priority, then the lower ones.
func reachableText() string {
	return `
	WITH looked AS (
		SELECT * FROM (` + taskPart + ` AND t.priority = $3 AND t.id > $4 ORDER BY t.id LIMIT $5) AS rest
		UNION ALL
		SELECT * FROM (` + taskPart + ` AND t.priority < $3 ORDER BY t.priority DESC, t.id LIMIT $5) AS lower
	)
	SELECT t.device, CASE WHEN d.reach <> 0 AND d.last_seen > {now} - $6 * {ms} AND ` + eligible() + `
			AND NOT EXISTS (SELECT 1 FROM grants g WHERE g.device = t.device) THEN d.reach ELSE 0 END,
		t.batch, t.id, b.weight, b.lane = 'urgent', ` + taskPriority + `, t.priority
	FROM looked t JOIN batches b ON b.id = t.batch JOIN pools p ON p.name = t.pool LEFT JOIN devices d ON d.id = t.device
	ORDER BY t.priority DESC, t.id LIMIT $5`
}

const taskPart = `SELECT t.id, t.pool, t.batch, t.device, t.priority, t.own_priority, t.retry_at, t.not_before, t.not_after, t.attempts, t.returned, t.lease_ms
	FROM tasks t WHERE t.pool = $1 AND t.batch = $2 AND t.state = 'pending'`
