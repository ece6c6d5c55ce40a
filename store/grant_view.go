package store

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// isEligibleSQL returns the SQL condition that a task may be granted now if its pool has a free slot. The condition refers to task t, batch
// b, pool p and device d. d may be NULL, because a device can have tasks before its first report registers it.
func isEligibleSQL() string {
	return isStartableForSQL(taskLeaseMillis) + ` AND d.blocked IS NOT TRUE AND ` + taskTimesAllow + ` AND ` + withinMaxWait
}

// taskTimesAllow is the part of isEligibleSQL that concerns only task t.
const taskTimesAllow = `(t.retry_at IS NULL OR t.retry_at <= {now}) AND (t.not_after IS NULL OR t.not_after > {now})`

// withinMaxWait is the condition that task t has not waited longer than the MaxWait of batch b. It is true for a task that was started
// before. If the task has its own not_before, the wait begins at that time.
const withinMaxWait = `(b.wait_until IS NULL OR b.wait_until > {now} OR t.attempts > 0 OR t.returned > 0 OR t.not_before + b.max_wait_ms * {ms} > {now})`

// isStartableSQL returns the part of isEligibleSQL that concerns only batch b and pool p, for tasks without a lease length of their own.
func isStartableSQL() string { return isStartableForSQL(batchLeaseMillis) }

// isStartableForSQL returns the condition of isStartableSQL for a lease of a given length. leaseExpr is an SQL expression for the length,
// in milliseconds.
func isStartableForSQL(leaseExpr string) string {
	return batchMayStart + `
	AND p.paused IS FALSE AND p.deleted_at IS NULL AND ` + poolMayGrantSQL + `
	AND ` + windowOpen("b", neededTime(leaseExpr)) + ` AND ` + windowOpen("p", neededTime(leaseExpr))
}

// batchMayStart is the part of isStartableSQL that concerns only batch b, without its windows.
const batchMayStart = `
	b.cancelled_at IS NULL AND b.paused IS FALSE
	AND (b.not_before IS NULL OR b.not_before <= {now})
	AND (b.not_after IS NULL OR b.not_after > {now})`

// candidateDest returns pointers to the fields of candidate, for the columns of a candidate in a query. All columns may be NULL, because
// the device may have no open task.
func candidateDest(candidate *Candidate) []any {
	return []any{
		&candidate.Task, &candidate.Batch, &candidate.Pool, &candidate.Priority, &candidate.Weight, &candidate.Urgent, &candidate.CreatedAt,
		&candidate.NotBefore, &candidate.RetryAt, &candidate.RetryAtIsNotBefore, &candidate.Attempt, &candidate.StartedBefore,
		&candidate.Lease, &candidate.PoolPaused, &candidate.BatchPaused, &candidate.FinishInside, &candidate.Standstill,
		&candidate.Window.From, &candidate.Window.Until, &candidate.PoolWindow.From, &candidate.PoolWindow.Until, &candidate.ExpiresAt,
		&candidate.PoolLimits, &candidate.Limits, &candidate.ProfileLimits, &candidate.Kind, &candidate.Payload, &candidate.IsDeployment,
	}
}

// DeviceViews reads everything that concerns the reports of the devices, in one snapshot. It returns one view per element of devices, in
// the same order, even if a device is listed twice. The candidates of a device are the best open tasks of each batch. Tasks that may start
// now come before tasks that wait for a time; then the highest priority comes first, then the oldest task.
func (s grants) DeviceViews(ctx context.Context, devices []string) ([]DeviceView, error) {
	return s.readSession().grants().readViews(ctx, devices)
}

// DeviceRegistrations does the same as DeviceViews, but reads only the fields Now, Device and Deleted.
func (s grants) DeviceRegistrations(ctx context.Context, devices []string) ([]DeviceView, error) {
	return s.readSession().grants().readRegistrations(ctx, devices)
}

// readRegistrations does the work of DeviceRegistrations in a session.
func (s grantsIn) readRegistrations(ctx context.Context, devices []string) ([]DeviceView, error) {
	unique, at := distinct(devices)
	rows, err := collect(ctx, s.session, func(r *viewRow) []any {
		return append([]any{&r.n, &r.Now, &r.Deleted}, deviceDest(&r.device)...)
	}, `
		SELECT w.n, {now}, `+wasDeletedSQL+`, `+deviceColumns+`
		FROM (SELECT * FROM {names}) AS w {device of w}`, namesInput(unique))
	if err != nil {
		return nil, err
	}
	return viewsInOrder(rows, unique, at), nil
}

// wasDeletedSQL is an SQL expression. It is true if the device of row w is not registered because it was deleted. It does not use EXISTS,
// because Postgres may evaluate an EXISTS by reading a whole table.
const wasDeletedSQL = `CASE WHEN d.id IS NULL THEN (SELECT gone.id FROM deleted_devices gone WHERE gone.id = w.name) IS NOT NULL ELSE FALSE END`

// viewRow is one row of a DeviceView. It has the registration and the grant of the device, or one candidate, or both.
type viewRow struct {
	n int
	DeviceView
	device    Device
	grant     Grant
	candidate Candidate
}

// mergeViewRows combines rows into DeviceViews and returns them. count is the number of views, and the field n of a row is the index of its
// view.
func mergeViewRows(rows []viewRow, count int) []DeviceView {
	read := make([]DeviceView, count)
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

// viewsInOrder returns one view per requested name, in the order of the request. rows are the rows of distinctNames, the requested names
// without repetition. indexes has one element per requested name: its index in distinctNames.
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

// nextStart returns the earliest time after v.Now at which one of the candidates may start by its own times. It returns zero if no
// candidate waits for a time.
func (v *DeviceView) nextStart() (next time.Time) {
	for _, c := range v.Candidates {
		if c.RetryAt.After(v.Now) && (next.IsZero() || c.RetryAt.Before(next)) {
			next = c.RetryAt
		}
	}
	return next
}

// maxCandidates is the maximum number of candidates per batch if policies apply to the batch. There are several candidates because policies
// may refuse one task and allow another. Without policies only the best task is a candidate.
const maxCandidates = 8

// bestCandidates returns the best candidates of each batch, without the task that the device holds. If alwaysIncluded is not 0, it is the
// id of a task that is returned even if it is not one of the best.
func (v *DeviceView) bestCandidates(alwaysIncluded int64) []Candidate {
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
		if rank == 1 || c.Task == alwaysIncluded || rank <= maxCandidates && (c.PoolLimits != nil || c.Limits != nil || c.ProfileLimits != nil) {
			shown = append(shown, c)
		}
	}
	return shown
}

// waitRank returns 1 if the task cannot start yet by its times at the time now, else 0.
func (c *Candidate) waitRank(now time.Time) int {
	if c.NotBefore.After(now) || c.RetryAt.After(now) {
		return 1
	}
	return 0
}

// readViews reads the DeviceView of each device.
func (s grantsIn) readViews(ctx context.Context, devices []string) ([]DeviceView, error) {
	unique, at := distinct(devices)
	rows, err := collect(ctx, s.session, viewRowDest, viewsText, namesInput(unique))
	if err != nil {
		return nil, err
	}
	return viewsInOrder(rows, unique, at), nil
}

// readViewsWithTasks reads one DeviceView for each of tasks. The device of a task is at the same index in devices. statement is
// taskViewText or waitingViewText. If the task is open, it is among the candidates, even if other tasks are better.
func (s grantsIn) readViewsWithTasks(ctx context.Context, statement string, devices []string, tasks []int64) ([]DeviceView, error) {
	rows, err := collect(ctx, s.session, viewRowDest, statement, namesInput(devices), s.formatNumbers(tasks))
	if err != nil {
		return nil, err
	}
	views := mergeViewRows(rows, len(devices))
	for i := range views {
		views[i].Candidates = views[i].bestCandidates(tasks[i])
	}
	return views, nil
}

// viewRowDest returns pointers to the fields of row, for the columns of viewsText.
func viewRowDest(row *viewRow) []any {
	dest := []any{&row.n, &row.Now, &row.Standstill, &row.Deleted}
	dest = append(dest, deviceDest(&row.device)...)
	dest = append(dest, grantDest(&row.grant)...)
	return append(dest, candidateDest(&row.candidate)...)
}

// distinct returns the texts without duplicates. indexes has one element per element of texts: its index in unique.
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

// hiddenPending is the state pending as a sub-select. The planner of Postgres does not know the value of a sub-select, so it cannot choose
// the indexes that contain only pending tasks.
const hiddenPending = `(SELECT 'pending')`

// These queries find, for one batch, the open tasks of a device that may be the best ones. A task has a priority of its own or the priority
// of its batch. It either was never tried (such tasks are sorted by priority), or has a retry time or a not_before (such tasks are sorted
// by time). So there are four groups of tasks, and an index finds the first tasks of each group at a cost that does not depend on the
// number of tasks. A batch that has ended and a task that is past its not_after are left out.
const (
	openBatch     = `CASE WHEN c.cancelled_at IS NULL AND p.deleted_at IS NULL AND (c.not_after IS NULL OR c.not_after > w.now) THEN c.id END`
	openTaskGroup = `SELECT * FROM (SELECT {columns of best} FROM tasks t WHERE t.device = w.device AND t.state = w.pending AND t.batch * 1 = ` + openBatch + notEnded
	notEnded      = ` AND (t.not_after IS NULL OR t.not_after > w.now)
		AND (c.wait_until IS NULL OR c.wait_until > w.now OR t.attempts > 0 OR t.returned > 0 OR t.not_before + c.max_wait_ms * {ms} > w.now)`
	indexOrder = ` ORDER BY t.retry_at NULLS FIRST, t.priority DESC, t.id`
	neverTried = ` AND t.retry_at IS NULL` + indexOrder + ` LIMIT {shown and held}) AS few`
	retried    = ` AND t.retry_at IS NOT NULL` + indexOrder + ` LIMIT 9) AS few`
	bestTasks  = openTaskGroup + ` AND t.own_priority IS TRUE` + neverTried + ` UNION ALL ` + openTaskGroup + ` AND t.own_priority IS TRUE` + retried +
		` UNION ALL ` + openTaskGroup + ` AND t.own_priority IS FALSE` + neverTried + ` UNION ALL ` + openTaskGroup + ` AND t.own_priority IS FALSE` + retried
)

// viewsText selects the views of the devices {names}. It goes through the index of open tasks from batch to batch of each device, and reads
// the best tasks of each batch. The first step for a device also reads the device and its grant, even if the device has no batch. Go code
// decides which candidates are shown, and in which order. The task that the device holds is among the rows but is not shown, so each group
// reads one task more than can be shown. waitingViewText is for devices with many waiting tasks: it reads only the 16 oldest batches and
// the batch of the task.
//
// Each lookup is a query of its own, so that there is only one possible plan. The plan must not depend on statistics, because Postgres
// plans this text once, perhaps when all tables are empty. The index contains the expression batch * 1, which no other index has. The state
// is hidden (hiddenPending), so Postgres cannot use the indexes of pending tasks.
const (
	viewsText       = openOfDevices + shownBatches + joinViewRows + bestTasks + endOfViews
	taskViewText    = openOfDevices + shownBatches + joinViewRows + bestTasks + taskOfEach + endOfViews
	waitingViewText = openOfDevices + ` AND w.leaps < 15` + shownBatches + unionTaskBatch + joinViewRows + bestTasks + taskOfEach + endOfViews

	// taskOfEach adds the given task of each device to the candidates, even if other tasks are better.
	taskOfEach     = ` UNION ALL SELECT {columns of best} FROM tasks t WHERE t.id = {task of n} AND t.device = w.device AND t.state = w.pending AND t.batch = ` + openBatch + notEnded
	unionTaskBatch = ` UNION ALL SELECT w.n, w.now, w.limits, w.pending, (SELECT t.batch FROM tasks t WHERE t.id = {task of n}), w.name, NULL FROM leap w WHERE w.leaps = 0`

	nextBatch = `(SELECT min(t.batch * 1) FROM tasks t WHERE t.device = w.name AND t.state = `
	// expiresAtSQL is the earliest of three times; times that are NULL are ignored. Each time is the first argument of one coalesce,
	// because least of SQLite returns NULL if one of its arguments is NULL.
	expiresAtSQL   = `least(coalesce(o.not_after, c.not_after, c.wait_until), coalesce(c.not_after, c.wait_until, o.not_after), coalesce(c.wait_until, o.not_after, c.not_after))`
	hasPoliciesSQL = `(p.limits IS NOT NULL OR c.limits IS NOT NULL OR w.limits IS NOT NULL)`
	openOfDevices  = `
		WITH RECURSIVE clock AS (SELECT {now} AS now),
		leap(n, name, now, limits, pending, leaps, batch) AS (
			SELECT w.n, w.name, clock.now,
				(SELECT p.limits FROM profiles p WHERE p.name = (SELECT own.profile FROM devices own WHERE own.id = w.name)),
				` + hiddenPending + `, 0, ` + nextBatch + hiddenPending + `) FROM (SELECT * FROM {names}) AS w CROSS JOIN clock
			UNION ALL
			SELECT w.n, w.name, w.now, w.limits, w.pending, w.leaps + 1, ` + nextBatch + `w.pending AND t.batch * 1 > w.batch)
			FROM leap w WHERE w.batch IS NOT NULL`
	shownBatches = `)
		SELECT w.n, w.now, (SELECT holds.stands_until FROM pools holds WHERE holds.name = g.pool), ` + wasDeletedSQL + `,
			` + deviceColumns + `, ` + grantColumns + `,
			o.id, c.id, c.pool, CASE WHEN o.own_priority THEN o.priority ELSE c.priority END, c.weight, c.lane = 'urgent', c.created_at, c.not_before, o.retry_at, o.retry_at = o.not_before, o.attempts + 1, o.attempts + o.returned > 0,
			coalesce(o.lease_ms, CASE WHEN c.lease_ms > 0 THEN c.lease_ms ELSE p.lease_ms END), p.paused, c.paused, c.finish_inside, p.stands_until, c.opens_at, c.closes_at, p.opens_at, p.closes_at, ` + expiresAtSQL + `,
			p.limits, c.limits, w.limits, CASE WHEN ` + hasPoliciesSQL + ` THEN c.kind END, CASE WHEN ` + hasPoliciesSQL + ` THEN coalesce(o.payload, c.payload) END,
			c.is_deployment AND o.payload IS NULL
		FROM (SELECT n, now, limits, pending, batch, name AS device, CASE WHEN leaps = 0 THEN name END AS name FROM leap WHERE leaps = 0 OR batch IS NOT NULL`
	joinViewRows = `) AS w
			{device of w} {grant of w} {task of g} {batch of g} {batch c of w} {pool of c}
			{best (}`
	endOfViews = `{) o}`
)
