package store

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// isEligibleSQL returns the condition that task t of batch b, pool p and device d may be granted if a slot is free. d may be NULL: a device
// can have tasks before it is registered. For one report, package decision checks most of these conditions in Go (deviceRules, taskRules).
// openBatch and notEnded check the others.
func isEligibleSQL() string {
	return isStartableForSQL(taskLeaseMillis) + ` AND d.blocked IS NOT TRUE AND ` + taskTimesAllow + ` AND ` + withinMaxWait
}

// taskTimesAllow is the condition that retry_at and not_after of task t allow it to start now.
const taskTimesAllow = `(t.retry_at IS NULL OR t.retry_at <= {now}) AND (t.not_after IS NULL OR t.not_after > {now})`

// withinMaxWait is the condition that task t was started before, or that t has not waited longer than the MaxWait of batch b. The wait begins
// at the not_before of the task, if it has one. notEnded repeats this condition for batch c.
const withinMaxWait = `(b.wait_until IS NULL OR b.wait_until > {now} OR t.started IS TRUE OR t.not_before + b.max_wait_ms * {ms} > {now})`

// isStartableSQL returns the part of isEligibleSQL for batch b and pool p, for tasks without a lease length of their own.
func isStartableSQL() string { return isStartableForSQL(batchLeaseMillis) }

// isStartableForSQL returns the condition of isStartableSQL for tasks whose lease has the length leaseExpr, an SQL expression in ms.
func isStartableForSQL(leaseExpr string) string {
	return batchMayStart + `
	AND p.paused IS FALSE AND p.deleted_at IS NULL AND ` + poolMayGrantSQL + `
	AND ` + windowOpenSQL("b", neededTimeSQL(leaseExpr)) + ` AND ` + windowOpenSQL("p", neededTimeSQL(leaseExpr))
}

// batchMayStart is the part of isStartableSQL for batch b alone, without its windows.
const batchMayStart = `
	b.cancelled_at IS NULL AND b.paused IS FALSE
	AND (b.not_before IS NULL OR b.not_before <= {now})
	AND (b.not_after IS NULL OR b.not_after > {now})`

// candidateScanDest returns pointers to the fields of candidate. All columns are NULL if the device has no open task.
func candidateScanDest(candidate *Candidate) (scanDest []any) {
	return []any{
		&candidate.Task, &candidate.Batch, &candidate.Pool, &candidate.Priority, &candidate.Weight, &candidate.Urgent, &candidate.CreatedAt,
		&candidate.NotBefore, &candidate.RetryAt, &candidate.RetryAtIsNotBefore, &candidate.Attempt, &candidate.StartedBefore,
		&candidate.Lease, &candidate.PoolPaused, &candidate.BatchPaused, &candidate.FinishInside, &candidate.Standstill,
		&candidate.Window.From, &candidate.Window.Until, &candidate.PoolWindow.From, &candidate.PoolWindow.Until, &candidate.ExpiresAt,
		&candidate.PoolLimits, &candidate.Limits, &candidate.ProfileLimits, &candidate.Kind, &candidate.Payload, &candidate.FitsDDI,
	}
}

// DeviceViews reads everything that concerns the reports of the devices, in one snapshot, one view per element of devices, in their order.
// The candidates of a device are the best open tasks of each batch: first tasks that may start now, then by priority, then the oldest.
func (s grants) DeviceViews(ctx context.Context, devices []string) ([]DeviceView, error) {
	return s.readSession().readViews(ctx, devices)
}

// DeviceRegistrations does the same as DeviceViews, but reads only the fields Now, Device and Deleted.
func (s grants) DeviceRegistrations(ctx context.Context, devices []string) ([]DeviceView, error) {
	return s.readSession().readRegistrations(ctx, devices)
}

func (s session) readRegistrations(ctx context.Context, devices []string) ([]DeviceView, error) {
	unique, at := distinct(devices)
	rows, err := collect(ctx, s, func(r *viewRow) []any {
		return append([]any{&r.n, &r.Now, &r.Deleted}, deviceScanDest(&r.device)...)
	}, `
		SELECT w.n, {now}, `+wasDeletedSQL+`, `+deviceColumns+`
		FROM (SELECT * FROM {names}) AS w {device of w}`, namesToJSONArray(unique))
	if err != nil {
		return nil, err
	}
	return viewsInOrder(rows, unique, at), nil
}

// wasDeletedSQL is true if the device of row w was deleted. It uses no EXISTS, because Postgres may read a whole table for an EXISTS.
const wasDeletedSQL = `CASE WHEN d.id IS NULL THEN (SELECT gone.id FROM deleted_devices gone WHERE gone.id = w.name) IS NOT NULL ELSE FALSE END`

// viewRow is one row of a DeviceView. It has the device and its grant, or a candidate, or both. n is the index of the view.
type viewRow struct {
	n int
	DeviceView
	device    Device
	grant     Grant
	candidate Candidate
}

// mergeViewRows combines the rows of several devices into one DeviceView for each device.
func mergeViewRows(rows []viewRow, viewCount int) []DeviceView {
	read := make([]DeviceView, viewCount)
	for i := range rows {
		r := &rows[i]
		v := &read[r.n]
		v.Now, v.Deleted = r.Now, v.Deleted || r.Deleted
		if !r.Standstill.IsZero() { // only the row with the grant has a Standstill
			v.Standstill = r.Standstill
		}
		if r.device.ID != "" {
			v.Device = &r.device
		}
		if r.grant.Task != 0 {
			v.Grant = &r.grant
		}
		if r.candidate.Task != 0 {
			v.Candidates = append(v.Candidates, r.candidate)
		}
	}
	return read
}

// viewsInOrder returns one view per requested device. rows are the rows of distinctNames. indexes[i] is the index of the requested device i
// in distinctNames.
func viewsInOrder(rows []viewRow, distinctNames []string, indexes []int) []DeviceView {
	read := mergeViewRows(rows, len(distinctNames))
	for i := range read {
		read[i].NextStart = read[i].nextStart()
		read[i].Candidates = read[i].bestCandidates(0)
	}
	views := make([]DeviceView, len(indexes))
	for i := range views {
		views[i] = read[indexes[i]]
	}
	return views
}

// nextStart returns the earliest time after v.Now at which a candidate may start, by its not_before or its backoff. It returns zero if no
// candidate waits for a time.
func (v *DeviceView) nextStart() (next time.Time) {
	for _, c := range v.Candidates {
		if c.RetryAt.After(v.Now) && (next.IsZero() || c.RetryAt.Before(next)) {
			next = c.RetryAt
		}
	}
	return next
}

// maxCandidates is the maximum number of candidates of a batch with policies. There are several, because policies may refuse one task and
// allow another.
const maxCandidates = 8

// bestCandidates returns the best candidates of each batch, without the task that the device holds. The task alwaysIncludedTask is always
// among them, unless it is 0.
//
// The order of tasks by priority and id is also in indexOrder, reachableSQL, waitingTasksSQL, WaitingPosition.Compare and waitingCallersSQL,
// and in taskSortText of package slots.
func (v *DeviceView) bestCandidates(alwaysIncludedTask int64) []Candidate {
	slices.SortFunc(v.Candidates, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(a.Batch, b.Batch), cmp.Compare(a.waitRank(v.Now), b.waitRank(v.Now)), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Task, b.Task))
	})
	shown, batch, last, rank := v.Candidates[:0], int64(0), int64(0), 0
	for _, c := range v.Candidates {
		if c.Task == last || v.Grant != nil && c.Task == v.Grant.Task {
			continue // readViewsWithTasks reads the named task twice if it is also one of the best
		}
		if c.Batch != batch {
			batch, rank = c.Batch, 0
		}
		rank++
		last = c.Task
		if rank == 1 || c.Task == alwaysIncludedTask || rank <= maxCandidates && (c.PoolLimits != nil || c.Limits != nil || c.ProfileLimits != nil) {
			shown = append(shown, c)
		}
	}
	return shown
}

// waitRank returns 1 if the task cannot start at the time now. Otherwise it returns 0.
func (c *Candidate) waitRank(now time.Time) int {
	if c.NotBefore.After(now) || c.RetryAt.After(now) {
		return 1
	}
	return 0
}

func (s session) readViews(ctx context.Context, devices []string) ([]DeviceView, error) {
	unique, at := distinct(devices)
	rows, err := collect(ctx, s, viewRowScanDest, viewsText, namesToJSONArray(unique))
	if err != nil {
		return nil, err
	}
	return viewsInOrder(rows, unique, at), nil
}

// readViewsWithTasks reads one DeviceView for each task in taskIDs. devices has the device of each task. If a task is open, it is a candidate of
// its view. statement is taskViewText or waitingViewText.
func (s session) readViewsWithTasks(ctx context.Context, statement string, devices []string, taskIDs []int64) ([]DeviceView, error) {
	rows, err := collect(ctx, s, viewRowScanDest, statement, namesToJSONArray(devices), s.formatNumberList(taskIDs))
	if err != nil {
		return nil, err
	}
	views := mergeViewRows(rows, len(devices))
	for i := range views {
		views[i].Candidates = views[i].bestCandidates(taskIDs[i])
	}
	return views, nil
}

func viewRowScanDest(row *viewRow) (scanDest []any) {
	dest := []any{&row.n, &row.Now, &row.Standstill, &row.Deleted}
	dest = append(dest, deviceScanDest(&row.device)...)
	dest = append(dest, grantScanDest(&row.grant)...)
	return append(dest, candidateScanDest(&row.candidate)...)
}

// distinct returns the texts without duplicates, and in indexes the index of each text in unique.
func distinct(texts []string) (unique []string, indexes []int) {
	first := make(map[string]int, len(texts))
	indexes = make([]int, len(texts))
	for i, text := range texts {
		n, known := first[text]
		if !known {
			n = len(unique)
			first[text], unique = n, append(unique, text)
		}
		indexes[i] = n
	}
	return unique, indexes
}

// hiddenPending is the state pending as a sub-select. The planner does not know its value, so it cannot use the indexes of pending tasks.
const hiddenPending = `(SELECT 'pending')`

// These queries find the best open tasks of a device in one batch. They read tasks with a priority of their own and tasks with the priority
// of the batch separately. They also read tasks with and without a start time (retry time or not_before) separately, which makes four
// groups. Tasks with a start time are sorted by this time, and the other tasks by priority. An index finds the first tasks of each group.
// Batches that ended and tasks past their not_after are left out.
const (
	openBatch     = `CASE WHEN c.cancelled_at IS NULL AND p.deleted_at IS NULL AND (c.not_after IS NULL OR c.not_after > w.now) THEN c.id END`
	openTaskGroup = `SELECT * FROM (SELECT {columns of best} FROM tasks t WHERE t.device = w.device AND t.state = w.pending AND t.batch * 1 = ` + openBatch + notEnded
	notEnded      = ` AND (t.not_after IS NULL OR t.not_after > w.now)
		AND (c.wait_until IS NULL OR c.wait_until > w.now OR t.started IS TRUE OR t.not_before + c.max_wait_ms * {ms} > w.now)`
	indexOrder   = ` ORDER BY t.retry_at NULLS FIRST, t.priority DESC, t.id`
	noStartTime  = ` AND t.retry_at IS NULL` + indexOrder + ` LIMIT {shown and held}) AS few`
	hasStartTime = ` AND t.retry_at IS NOT NULL` + indexOrder + ` LIMIT 9) AS few`
	bestTasks    = openTaskGroup + ` AND t.own_priority IS TRUE` + noStartTime + ` UNION ALL ` + openTaskGroup + ` AND t.own_priority IS TRUE` + hasStartTime +
		` UNION ALL ` + openTaskGroup + ` AND t.own_priority IS FALSE` + noStartTime + ` UNION ALL ` + openTaskGroup + ` AND t.own_priority IS FALSE` + hasStartTime
)

// viewsText selects the views of the devices {names}. For each device, it goes from batch to batch in the index of open tasks, and reads
// the best tasks of each batch. The first step of a device also reads the device and its grant. Go code decides which candidates are shown.
// It never shows the task that the device holds, so each group reads one more task. waitingViewText, for devices with many waiting tasks, reads
// only the 16 oldest batches and the batch of the task.
//
// Each lookup is a query of its own, so that only one plan is possible: Postgres plans this text once, perhaps with empty tables. Only the
// index of open tasks has the expression batch * 1.
const (
	viewsText       = openOfDevices + shownBatches + joinViewRows + bestTasks + endOfViews
	taskViewText    = openOfDevices + shownBatches + joinViewRows + bestTasks + taskOfEach + endOfViews
	waitingViewText = openOfDevices + ` AND w.leaps < 15` + shownBatches + unionTaskBatch + joinViewRows + bestTasks + taskOfEach + endOfViews

	// taskOfEach adds the given task of each device to the candidates, even if other tasks are better.
	taskOfEach     = ` UNION ALL SELECT {columns of best} FROM tasks t WHERE t.id = {task of n} AND t.device = w.device AND t.state = w.pending AND t.batch = ` + openBatch + notEnded
	unionTaskBatch = ` UNION ALL SELECT w.n, w.now, w.limits, w.metadata_only, w.pending, (SELECT t.batch FROM tasks t WHERE t.id = {task of n}), w.name, NULL FROM leap w WHERE w.leaps = 0`

	nextBatch = `(SELECT min(t.batch * 1) FROM tasks t WHERE t.device = w.name AND t.state = `
	// expiresAtSQL is the earliest of three times, each of which may be NULL. Each time comes first in one of the coalesce calls, so that
	// least gets no NULL unless all three are NULL. In SQLite, least returns NULL if any argument is NULL.
	expiresAtSQL   = `least(coalesce(o.not_after, c.not_after, c.wait_until), coalesce(c.not_after, c.wait_until, o.not_after), coalesce(c.wait_until, o.not_after, c.not_after))`
	hasPoliciesSQL = `(p.limits IS NOT NULL OR c.limits IS NOT NULL OR w.limits IS NOT NULL)`
	openOfDevices  = `
		WITH RECURSIVE clock AS (SELECT {now} AS now),
		leap(n, name, now, limits, metadata_only, pending, leaps, batch) AS (
			SELECT w.n, w.name, clock.now,
				(SELECT p.limits FROM profiles p WHERE p.name = (SELECT own.profile FROM devices own WHERE own.id = w.name)),
				(SELECT p.metadata_only FROM profiles p WHERE p.name = (SELECT own.profile FROM devices own WHERE own.id = w.name)),
				` + hiddenPending + `, 0, ` + nextBatch + hiddenPending + `) FROM (SELECT * FROM {names}) AS w CROSS JOIN clock
			UNION ALL
			SELECT w.n, w.name, w.now, w.limits, w.metadata_only, w.pending, w.leaps + 1, ` + nextBatch + `w.pending AND t.batch * 1 > w.batch)
			FROM leap w WHERE w.batch IS NOT NULL`
	shownBatches = `)
		SELECT w.n, w.now, (SELECT holds.stands_until FROM pools holds WHERE holds.name = g.pool), ` + wasDeletedSQL + `,
			` + deviceColumns + `, ` + grantColumns + `,
			o.id, c.id, c.pool, CASE WHEN o.own_priority THEN o.priority ELSE c.priority END, c.weight, c.lane = 'urgent', c.created_at, c.not_before, o.retry_at, o.retry_at = o.not_before, o.attempts + 1, o.started,
			coalesce(o.lease_ms, CASE WHEN c.lease_ms > 0 THEN c.lease_ms ELSE p.lease_ms END), p.paused, c.paused, c.finish_inside, p.stands_until, c.opens_at, c.closes_at, p.opens_at, p.closes_at, ` + expiresAtSQL + `,
			p.limits, c.limits, w.limits, CASE WHEN ` + hasPoliciesSQL + ` THEN c.kind END, CASE WHEN ` + hasPoliciesSQL + ` THEN coalesce(o.payload, c.payload) END,
			` + fitsDDI + `
		FROM (SELECT n, now, limits, metadata_only, pending, batch, name AS device, CASE WHEN leaps = 0 THEN name END AS name FROM leap WHERE leaps = 0 OR batch IS NOT NULL`
	joinViewRows = `) AS w
			{device of w} {grant of w} {task of g} {batch of g} {batch c of w} {pool of c}
			{best (}`
	endOfViews = `{) o}`
)
